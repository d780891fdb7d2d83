"""Properties of any pod and any review, with generated examples, ``BOWLINE_EXAMPLES`` for each test.

Through the bytes, as in the listener. That the API server agrees is in tests/pair/test_verdicts_live.py.
"""

import base64
import contextlib
import copy
import os
import random
from collections.abc import Iterator
from typing import Any, cast

import jsonpatch
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bowline.api import names
from bowline.framework.admission import AdmissionChain
from bowline.framework.config import PluginEntry, Settings
from bowline.framework.workload_kinds import READY
from bowline.framework.workloads import WorkloadEntry
from bowline_cli.manifests import Manifest
from bowline_cli.verdicts import review_manifest
from bowline_webhook.hooks import Hook
from bowline_webhook.review import MalformedReviewError, decode_review
from tests.chart.policy_pods import GPU, MIG, random_pod
from tests.foreign_kinds import job_set, pytorch_job, ray_cluster
from tests.unit.json_values import json_values
from tests.unit.webhook.chains import built_in
from tests.unit.webhook.reviews import bind_request, deployment, pod, response_of, review

EXAMPLES = int(os.environ.get("BOWLINE_EXAMPLES", "20"))
many = settings(max_examples=EXAMPLES, deadline=None)
# A thousandfold number of examples takes minutes.
pytestmark = pytest.mark.timeout(max(300, EXAMPLES))

KINDS = tuple(WorkloadEntry(kind=workload.kind) for workload in READY)
# Every plugin that validates pods, and every kind.
EVERYTHING = Settings(
    workloads=KINDS, plugins=tuple(PluginEntry(name=name) for name in ("device_access", "hami_core"))
)
EVERY_CHAIN = built_in(settings=EVERYTHING)
SEEDS = st.integers(0, 2**64)


Json = dict[str, Any]

# What the API server parses but rejects, and unusual values that it accepts.
QUANTITIES = (0, 1, 2, "0", "1", "3", "1k", "1000m", "0.5", "500m", "1.5", "-1", "1e3", "1Ki", "2e-1", "0.0")
ENVIRONMENT: tuple[Json, ...] = (
    {"name": "PLAIN", "value": "x"},
    {"name": names.VISIBLE_DEVICES, "value": "all"},
    {"name": names.VISIBLE_DEVICES, "value": ""},
    {"name": names.NUM_OF_GPUS, "value": "2"},
    {"name": names.GPU_PORTION, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": names.GPU_PORTION, "valueFrom": {"configMapKeyRef": {"name": "mine", "key": names.GPU_PORTION}}},
    {"name": names.DEVICE_MEMORY_LIMIT, "value": "1024"},
)
SOURCES: tuple[Json, ...] = (
    {"configMapRef": {"name": "mine"}},
    {"secretRef": {"name": "mine", "optional": True}},
    {"prefix": "P_", "configMapRef": {"name": "mine"}},
)


def generated_pod(seed: int) -> Json:
    """Return a pod that the API server decodes, valid or not; two of three have a valid share."""
    dice = random.Random(seed)  # noqa: S311 - no secret
    raw = random_pod(dice, "pod")
    raw = {"apiVersion": "v1", "kind": "Pod", **raw}
    spec = raw["spec"]
    is_good = dice.random() < 0.6
    if is_good:
        raw["metadata"]["annotations"] = _good_share(dice, spec)
    spec["schedulerName"] = dice.choice(("example-scheduler",) * 5 + ("kai-scheduler", "default-scheduler"))
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        _furnish(dice, container)
        # A few of the valid ones are invalidated, in one place.
        if is_good and dice.random() < 0.9:
            container.pop("resources", None)
    for container in spec.get("initContainers", ()):
        if dice.random() < 0.4:
            container["restartPolicy"] = "Always"  # a sidecar: it runs beside the others
    return cast(Json, orjson.loads(orjson.dumps(raw)))  # as from the wire: no object is shared between its parts


def _good_share(dice: random.Random, spec: Json) -> Json:
    """Return the annotations of a share without errors in themselves."""
    size = dice.choice(({names.GPU_FRACTION: "0.5"}, {names.GPU_FRACTION: "0.001"}, {names.GPU_MEMORY: "4096"}))
    annotations = dict(size)
    containers = [*spec["containers"], *spec.get("initContainers", ())]
    if dice.random() < 0.3:
        annotations[names.GPU_FRACTION_NUM_DEVICES] = dice.choice(("1", "2", "16"))
    if dice.random() < 0.4:
        annotations[names.GPU_FRACTION_CONTAINER] = dice.choice(containers)["name"]
    if dice.random() < 0.2:
        annotations[names.MPS] = "true"
    if dice.random() < 0.3:
        annotations[names.SHARED_GPU_CONFIGMAP] = dice.choice(("x", "my.share", "p" * 30))
    return annotations


def _furnish(dice: random.Random, container: Json) -> None:
    """Give a container what our mutation may encounter: variables of the same names, sources, unusual quantities."""
    if dice.random() < 0.4:
        container["env"] = [dice.choice(ENVIRONMENT) for _ in range(dice.randint(0, 4))]
    if dice.random() < 0.3:
        container["envFrom"] = [dice.choice(SOURCES) for _ in range(dice.randint(0, 2))]
    if dice.random() < 0.15:
        resources = container.setdefault("resources", {})
        for kind in dice.choice((("limits",), ("requests",), ("limits", "requests"))):
            resources.setdefault(kind, {})[dice.choice((GPU, GPU, MIG))] = dice.choice(QUANTITIES)


@pytest.fixture(scope="module", params=[built_in(), EVERY_CHAIN], ids=["by default", "every plugin and kind"])
def chain(request: pytest.FixtureRequest) -> AdmissionChain:
    """A chain in which a bug of a plugin fails the test."""
    return cast(AdmissionChain, request.param)


def apply(raw: Any, response: dict[str, Any]) -> Any:
    """Return the object after the response's patch."""
    patch = orjson.loads(base64.b64decode(response.get("patch", "W10=")))
    return jsonpatch.apply_patch(raw, patch)


def admit(chain: AdmissionChain, raw: Any) -> tuple[dict[str, Any], Any]:
    """Return the mutating hook's response to a new pod, and the pod after it."""
    response = response_of(Hook.MUTATE_PODS, review(raw, name=raw["metadata"].get("name", "")), chain)
    return response, apply(raw, response)


@many
@given(seed=SEEDS)
def test_admission_agrees_with_itself_and_with_validation(chain: AdmissionChain, seed: int) -> None:
    response, mutated_pod = admit(chain, generated_pod(seed))
    again, twice = admit(chain, mutated_pod)
    assert (twice, "patch" in again) == (mutated_pod, False)
    final = response_of(Hook.VALIDATE_PODS, review(mutated_pod), chain)
    assert final["allowed"] is response["allowed"]
    # Once stored, its other fields can be changed, and it can be deleted, whatever its errors.
    touched_pod = {**mutated_pod, "metadata": {**mutated_pod["metadata"], "finalizers": []}}
    assert response_of(Hook.VALIDATE_PODS, review(touched_pod, mutated_pod), chain)["allowed"]


@many
@given(seed=SEEDS, first=st.booleans())
def test_reinvocation_sees_the_changes_of_another_webhook(chain: AdmissionChain, seed: int, first: bool) -> None:
    response, mutated_pod = admit(chain, generated_pod(seed))
    sidecar = {"name": "injected", "image": "example.com/proxy", "env": [{"name": "MODE", "value": "x"}]}
    mutated_pod["spec"]["containers"].insert(0 if first else len(mutated_pod["spec"]["containers"]), sidecar)
    again, complete_pod = admit(chain, mutated_pod)
    assert "patch" not in admit(chain, complete_pod)[0]
    if again["allowed"]:
        assert response_of(Hook.VALIDATE_PODS, review(complete_pod), chain)["allowed"]
    if not first:  # the first one is the share's container
        assert again["allowed"] is response["allowed"]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every part of the value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def at(raw: Any, path: tuple[Any, ...]) -> Any:
    for token in path:
        raw = raw[token]
    return raw


JSON = json_values(st.text(max_size=5))
# Objects whose keys are the API's, not the user's: a newer version may add fields there.
FREE = {"annotations", "labels", "limits", "requests"}


@many
@given(seed=SEEDS, unknown=st.dictionaries(st.text(max_size=4), JSON, min_size=1, max_size=3))
def test_unknown_fields_survive_byte_for_byte(chain: AdmissionChain, seed: int, unknown: dict[str, Any]) -> None:
    raw = generated_pod(seed)
    open_to_new = [path for path in places(raw) if isinstance(at(raw, path), dict) and not FREE & set(map(str, path))]
    where = random.Random(seed).sample(open_to_new, min(3, len(open_to_new)))  # noqa: S311 - no secret
    fields = {f"future-{key}": value for key, value in unknown.items()}
    extended_pod = copy.deepcopy(raw)
    for path in where:
        at(extended_pod, path).update(copy.deepcopy(fields))
    response, after = admit(chain, extended_pod)
    plain, expectation = admit(chain, raw)
    assert response["allowed"] is plain["allowed"]
    for path in where:
        # Variables are replaced where the share's own have their names; all else is unchanged.
        if "env" in path:
            continue
        target = at(after, path)
        unknown_fields = {key: target.pop(key) for key in fields}
        assert orjson.dumps(unknown_fields) == orjson.dumps(fields)
    if not any("env" in path for path in where):
        assert after == expectation


def lint(chain: AdmissionChain, raw: Any) -> list[str]:
    """Return lint's errors, without those of rules that the API server applies itself."""
    errors = review_manifest(chain, Manifest("x.yaml", 1, copy.deepcopy(raw))).review.errors
    return [f"{error} ({error.rule.id})" for error in errors if not error.rule.id.startswith("kubernetes/")]


def errors_in(response: dict[str, Any]) -> list[str]:
    causes = (response.get("status") or {}).get("details", {}).get("causes", [])
    return [f"{cause['field']}: {cause['message']}" for cause in causes[:-1]]


def template_of(raw: Any) -> Any:
    return {key: raw[key] for key in ("metadata", "spec")}


@many
@given(seed=SEEDS)
def test_lint_and_webhook_agree_on_a_pod_and_its_workloads(seed: int) -> None:
    raw = generated_pod(seed)
    # Denied in templates alone: each of their pods needs ConfigMaps of its own.
    (raw["metadata"].get("annotations") or {}).pop(names.SHARED_GPU_CONFIGMAP, None)
    errors = errors_in(response_of(Hook.MUTATE_PODS, review(raw), EVERY_CHAIN))
    assert lint(EVERY_CHAIN, raw) == errors
    template = template_of(raw)
    workloads = {
        # Without a selector it would be a patch for lint.
        "spec.template": {**deployment(), "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}},
        "spec.replicatedJobs[0].template.spec.template": job_set("w", template),
        "spec.headGroupSpec.template": ray_cluster("w", template),
        "spec.pytorchReplicaSpecs[Worker].template": pytorch_job("w", Worker=template),
    }
    for path, workload in workloads.items():
        group = workload["apiVersion"].partition("/")[0]
        document = review(copy.deepcopy(workload), group=group, kind=workload["kind"])
        response = response_of(Hook.VALIDATE_WORKLOADS, document, EVERY_CHAIN)
        assert errors_in(response) == [f"{path}.{fault}" for fault in errors]
        assert lint(EVERY_CHAIN, workload) == errors_in(response)


# --- reviews of any shape ---

SAMPLES = (
    (Hook.MUTATE_PODS, review(pod({"gpu-fraction": "0.5", "mps": "true"}))),
    (Hook.VALIDATE_PODS, review(pod({"gpu-memory": "1"}), pod({"gpu-memory": "2"}))),
    (Hook.MUTATE_EPHEMERAL_CONTAINERS, review(pod(ephemeralContainers=[{"name": "d"}]), pod(),
        subResource="ephemeralcontainers")),
    (Hook.VALIDATE_WORKLOADS, review(deployment({"gpu-fraction": "2"}), deployment(), group="apps",
        kind="Deployment")),
    (Hook.VALIDATE_WORKLOADS, review(job_set("w", template_of(pod({"gpu-fraction": "2"})), template_of(pod())),
        job_set("w", template_of(pod())), group="jobset.x-k8s.io", kind="JobSet")),
    (Hook.VALIDATE_WORKLOADS, review(pytorch_job("w", Worker=template_of(pod({"mps": "x"}))), group="kubeflow.org",
        kind="PyTorchJob")),
    (Hook.MUTATE_BIND_REQUESTS, review(bind_request(), bind_request(backoffLimit=1), group="scheduling.run.ai",
        kind="BindRequest")),
    (Hook.MUTATE_BIND_REQUESTS, review(bind_request(receivedGPU={"count": 1}), group="scheduling.run.ai",
        kind="BindRequest")),
)  # fmt: skip


@st.composite
def mutated_reviews(draw: st.DrawFn) -> tuple[Hook, dict[str, Any]]:
    """Draw a real review, mostly for its own hook, with a few values below the uid's level replaced by anything."""
    hook, sample = draw(st.sampled_from(SAMPLES))
    document: dict[str, Any] = copy.deepcopy(sample)
    for _ in range(draw(st.integers(1, 4))):
        possible = [path for path in places(document) if len(path) >= 2 and path != ("request", "uid")]
        depth = draw(st.sampled_from((3, 3, 4, 5, 99)))  # otherwise nearly all changes are deep in a container
        path = draw(st.sampled_from([path for path in possible if len(path) <= depth]))
        at(document, path[:-1])[path[-1]] = draw(JSON)
    return draw(st.sampled_from((hook,) * 4 + tuple(Hook))), document


@many
@given(hook_and_review=mutated_reviews())
def test_any_review_with_a_uid_gets_a_response_with_it(
    chain: AdmissionChain, hook_and_review: tuple[Hook, dict[str, Any]]
) -> None:
    response = response_of(*hook_and_review, chain)
    assert response["uid"] == "uid-1"
    assert response["allowed"] or response["status"]["code"] == 422


@many
@given(st.binary(max_size=200) | JSON.map(orjson.dumps))
def test_any_body_is_decoded_or_rejected_with_a_message(body: bytes) -> None:
    with contextlib.suppress(MalformedReviewError):
        assert decode_review(body).uid
