"""Bounds of a review: errors, warnings, length of the response, values of a body, and calls of functions."""

import sys
from collections.abc import Iterable
from typing import Any

import orjson
import pytest

from bowline.api import names
from bowline.api.field_error import FieldError
from bowline.api.meta import Object
from bowline.api.rule import Rule, Severity
from bowline.framework.admission import AdmissionChain, Verdict
from bowline.framework.config import Settings
from bowline.framework.interface.plugin import AdmissionInfo, AdmissionPlugin, PluginConfig
from bowline.framework.structure import MAX_CONTAINERS, MAX_ERRORS, MAX_RESOURCES
from bowline.framework.workloads import WorkloadEntry
from bowline_webhook.hooks import Hook
from bowline_webhook.review import (
    MAX_ANSWER,
    MAX_VALUES,
    MAX_WARNINGS,
    MalformedReviewError,
    decode_review,
    encode_answer,
    review_object,
)
from bowline_webhook.workloads import MAX_TEMPLATES
from tests import hostile
from tests.unit.webhook.chains import built_in
from tests.unit.webhook.reviews import deployment, encode, pod, response_of, review

MIG = {f"nvidia.com/mig-{i}": "0.5" for i in range(MAX_RESOURCES)}


@pytest.mark.parametrize(
    "containers",
    [
        pytest.param([1] * 10_000, id="entries of the wrong type"),
        pytest.param([{"name": "m", "image": i, "env": [2] * 90} for i in range(90)], id="faults within entries"),
        pytest.param([{"name": "m", "resources": {"limits": MIG}}], id="faults that a plugin finds"),
    ],
)
def test_a_denial_states_that_errors_beyond_the_limit_are_left_out(containers: Any) -> None:
    status = response_of(Hook.MUTATE_PODS, review(pod(containers=containers)), built_in())["status"]
    causes = status["details"]["causes"]
    assert len(causes) == MAX_ERRORS + 2
    assert causes[-1]["reason"].endswith(",admission/more")


class Warns(AdmissionPlugin):
    """Yields a number of warnings, then an error if the pod has the annotation ``bad``."""

    name = "warns"

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        for index in range(MAX_ERRORS * 3):
            yield FieldError(Rule("warns/odd", "a test's", Severity.WARNS), f"spec.x[{index}]", index, "is odd")
        if "bad" in (pod["metadata"].get("annotations") or {}):
            yield FieldError(Rule("warns/bad", "a test's"), "spec", None, "must not be")


def test_an_error_behind_many_warnings_denies_and_warnings_alone_do_not() -> None:
    settings = Settings()
    chain = AdmissionChain([Warns(PluginConfig(), settings)], settings)
    assert not response_of(Hook.VALIDATE_PODS, review(pod({"bad": "x"})), chain)["allowed"]
    response = response_of(Hook.VALIDATE_PODS, review(pod()), chain)
    assert response["allowed"]
    assert len(response["warnings"]) == MAX_WARNINGS


@pytest.mark.parametrize(
    ("spec", "rule"),
    [
        pytest.param({"containers": [{"name": "m"}] * (MAX_CONTAINERS + 1)}, "structure/containers", id="containers"),
        pytest.param({"containers": [{"name": "m", "resources": {"limits": MIG, "requests": {"cpu": 1}}}]},
            "structure/resources", id="resources"),
    ],
)  # fmt: skip
def test_a_pod_with_too_many_values_is_denied_before_any_plugin(spec: Any, rule: str) -> None:
    response = response_of(Hook.VALIDATE_PODS, review(pod(**spec)), built_in())
    assert response["auditAnnotations"]["rules"] == rule


def test_a_workload_with_too_many_templates_is_denied() -> None:
    template = {key: pod()[key] for key in ("metadata", "spec")}
    jobs = [{"name": f"j{i}", "template": {"spec": {"template": template}}} for i in range(MAX_TEMPLATES + 1)]
    raw = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {},
        "spec": {"replicatedJobs": jobs},
    }
    chain = built_in(settings=Settings(workloads=(WorkloadEntry(kind="JobSet"),)))
    response = response_of(Hook.VALIDATE_WORKLOADS, review(raw, group="jobset.x-k8s.io", kind="JobSet"), chain)
    assert response["auditAnnotations"]["rules"] == "structure/templates"
    response = response_of(Hook.VALIDATE_WORKLOADS, review(deployment(), group="apps", kind="Deployment"), chain)
    assert response["allowed"]


def test_a_patch_that_is_too_long_is_denied_with_a_remedy() -> None:
    verdict = Verdict(patch=({"op": "add", "path": "/metadata/labels", "value": {"a": "x" * MAX_ANSWER}},))
    response = orjson.loads(encode_answer(decode_review(encode(review(pod()))), verdict))["response"]
    assert (response["allowed"], "patch" in response) == (False, False)
    assert "make its lists shorter" in response["status"]["message"]


@pytest.mark.parametrize("filler", ["{},", "[],", "1,", '{"a":1},', "[[[[]]]],"])
def test_a_body_of_many_values_is_not_decoded(filler: str) -> None:
    count = MAX_VALUES // sum(map(filler.count, ",{[")) + 1
    body = encode(review(pod({"x": "HERE"}))).replace(b'"HERE"', f"[{filler * count}1]".encode())
    assert_denied(body, str(MAX_VALUES))
    with pytest.raises(MalformedReviewError, match=str(MAX_VALUES)) as caught:
        decode_review(body.replace(b"AdmissionReview", b"Another"))
    assert caught.value.code == 413


def assert_denied(body: bytes, part: str) -> None:
    """Assert that the review is answered, with a denial that contains the part."""
    incoming = decode_review(body)
    verdict = review_object(Hook.VALIDATE_PODS, incoming, built_in())
    response = orjson.loads(encode_answer(incoming, verdict))["response"]
    assert (response["uid"], response["allowed"]) == ("uid-1", False)
    assert part in response["status"]["message"]


@pytest.mark.parametrize("text", [*hostile.PARAMETERS.values(), b"1e309"])
def test_an_object_that_is_not_decoded_is_denied(text: bytes) -> None:
    assert_denied(encode(review(pod({"x": "HERE"}))).replace(b'"HERE"', text), "managedFields")


@pytest.mark.parametrize("uid", ["u" * 129, "u" * 2_000_000])
def test_a_uid_is_bounded(uid: str) -> None:
    with pytest.raises(MalformedReviewError, match=r"request\.uid"):
        decode_review(encode(review(pod(), uid=uid)))


def test_long_names_are_cut_and_keys_with_controls_are_escaped() -> None:
    key = "nvidia.com/mig-\x1b[31m\u202e" + "x" * 5000
    bad = pod(containers=[{"name": "m", "resources": {"limits": {key: "0.5"}}}])
    response = response_of(Hook.MUTATE_PODS, review(bad, name="o" * 2_000_000), built_in())
    text = orjson.dumps(response).decode()
    assert len(text) < 4096
    assert text.isprintable()
    assert "\\\\u001b[31m\\\\u202e" in text


@pytest.mark.parametrize(
    ("hook", "annotations", "max_calls"),
    [
        pytest.param(Hook.MUTATE_PODS, {}, 81, id="a mutation of a plain pod"),
        pytest.param(Hook.MUTATE_PODS, {names.GPU_FRACTION: "0.5"}, 162, id="a mutation of a share"),
        pytest.param(Hook.VALIDATE_PODS, {}, 65, id="a validation of a plain pod"),
    ],
)
def test_a_review_calls_few_functions(hook: Hook, annotations: dict[str, str], max_calls: int) -> None:
    chain, body, calls = built_in(), encode(review(pod(annotations))), 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event == "call"

    for is_counted in (False, True):  # what the first review imports and caches is no cost of a review
        sys.setprofile(count if is_counted else None)
        decoded_review = decode_review(body)
        encode_answer(decoded_review, review_object(hook, decoded_review, chain))
        sys.setprofile(None)
    assert calls <= max_calls, calls
