"""Bytes to a verdict to bytes: each request's response."""

from itertools import product
from typing import Any

import orjson
import pytest

from bowline.api.field_error import FieldError
from bowline.api.rule import Rule, Severity
from bowline.framework.admission import Verdict
from bowline_webhook.hooks import Hook
from bowline_webhook.review import (
    MAX_WARNING_CHARACTERS,
    MalformedReviewError,
    decode_review,
    encode_answer,
    review_object,
)
from tests.unit.webhook.chains import built_in, marking
from tests.unit.webhook.reviews import bind_request, deployment, encode, pod, response_of, review


def answer(hook: Hook, document: Any) -> dict[str, Any]:
    return response_of(hook, document, marking())


class TestAnswers:
    def test_a_denial_has_every_error_in_message_and_causes(self) -> None:
        response = answer(Hook.VALIDATE_PODS, review(pod({"bad": "a,b"})))
        assert response == {
            "uid": "uid-1",
            "allowed": False,
            "status": {
                "status": "Failure",
                "code": 422,
                "reason": "Invalid",
                "message": '2 errors: metadata.annotations[bad]: "a": must not be; remove it (marker/bad); '
                'metadata.annotations[bad]: "b": must not be; remove it (marker/bad)',
                "details": {
                    "group": "",
                    "kind": "Pod",
                    "name": "p",
                    "causes": [
                        *(
                            {
                                "reason": "FieldValueInvalid",
                                "field": "metadata.annotations[bad]",
                                "message": f'"{word}": must not be; remove it (marker/bad)',
                            }
                            for word in ("a", "b")
                        ),
                        {
                            "reason": "marker/bad",
                            "field": "bowline",
                            "message": "denied the object; a rule is explained by: bowline rule RULE",
                        },
                    ],
                },
            },
            "auditAnnotations": {"decision": "refused", "rules": "marker/bad"},
        }

    def test_a_denial_ends_with_the_page_of_its_rule_where_documentation_is_published(self) -> None:
        incoming = decode_review(encode(review(pod({"bad": "a"}))))
        verdict = review_object(Hook.VALIDATE_PODS, incoming, marking())
        status = orjson.loads(encode_answer(incoming, verdict, "https://docs.example.com"))["response"]["status"]
        page = "https://docs.example.com/rules.html#markerbad"
        assert status["message"] == f'metadata.annotations[bad]: "a": must not be; remove it (marker/bad); see {page}'
        assert status["details"]["causes"][-1]["message"] == f"denied the object; see {page}"

    def test_a_value_is_printed_without_control_characters(self) -> None:
        status = answer(Hook.VALIDATE_PODS, review(pod({"bad": '\x1b[2J"'})))["status"]
        assert (
            status["message"] == r"""metadata.annotations[bad]: "\u001b[2J\"": must not be; remove it (marker/bad)"""
        )

    @pytest.mark.parametrize(
        ("raw", "reason"),
        [
            pytest.param({"metadata": {"name": "p"}, "spec": []}, "FieldValueTypeInvalid", id="a wrong type"),
            pytest.param({"metadata": {"name": "p"}}, "FieldValueRequired", id="a missing field"),
            pytest.param(pod({"bad": "a"}), "FieldValueInvalid", id="any other"),
            pytest.param(pod({"many": "a"}), "FieldValueTooMany",
                id="the cause that a plugin from elsewhere gives its rule"),
        ],
    )  # fmt: skip
    def test_a_cause_has_the_reason_of_its_rule(self, raw: Any, reason: str) -> None:
        causes = answer(Hook.VALIDATE_PODS, review(raw))["status"]["details"]["causes"]
        assert causes[0]["reason"] == reason

    def test_a_denied_pod_is_not_patched(self) -> None:
        assert "patch" not in answer(Hook.MUTATE_PODS, review(pod({"bad": "a"})))

    def test_a_warning_is_one_line(self) -> None:
        """The API server drops values with a control character."""
        for value in ("one\nline\r\nonly", "long " * 100, "\a\x1b[31m\x7f\x85" * 100):
            (warning,) = answer(Hook.VALIDATE_PODS, review(pod({"odd": value})))["warnings"]
            assert warning.isprintable()
            assert warning.startswith("metadata.annotations[odd]: ")
            assert warning.endswith(": is odd (marker/odd; bowline)")

    def test_long_warnings_share_what_an_api_server_keeps_and_name_their_rule(self) -> None:
        incoming = decode_review(encode(review(pod())))
        for count, rule in product((1, 2, 16, 40), ("long/warning", f"long/{'x' * 5000}")):
            error = FieldError(Rule(rule, "a test's", Severity.WARNS), "spec", 1, "word " * 1000)
            texts = orjson.loads(encode_answer(incoming, Verdict(warnings=(error,) * count)))["response"]["warnings"]
            assert len(texts) == min(count, 16)
            assert sum(map(len, texts)) <= MAX_WARNING_CHARACTERS
            assert min(map(len, texts)) == MAX_WARNING_CHARACTERS // len(texts), "no more is cut than must be"
            assert all(text.endswith("... (long/warning; bowline)") or "x" * 200 in text for text in texts)


class TestHooks:
    @pytest.mark.parametrize(
        ("hook", "document", "allowed"),
        [
            pytest.param(Hook.MUTATE_PODS, review(pod({"bad": "x"})), False,
                id="an invalid pod is denied at mutation"),
            pytest.param(Hook.VALIDATE_PODS, review(pod({"bad": "x"})), False,
                id="an invalid pod is denied at validation"),
            pytest.param(Hook.VALIDATE_PODS, review(pod({"bad": "x"}), pod()), False,
                id="a change that makes it invalid"),
            pytest.param(Hook.VALIDATE_PODS, review(pod({"bad": "x"}), pod({"bad": "x"})), True,
                id="not if it was invalid before"),
            pytest.param(Hook.MUTATE_PODS, review(pod({"bad": "x"}), pod()), True,
                id="an update is neither mutated nor validated there"),
            pytest.param(Hook.VALIDATE_PODS, review(pod({"bad": "x"}), subResource="status"), True,
                id="subresources pass"),
            pytest.param(Hook.VALIDATE_PODS, review(None, pod(), operation="DELETE"), True, id="deletions pass"),
            pytest.param(Hook.VALIDATE_PODS, review(pod({"bad": "x"}), namespace="kube-system"), True,
                id="kube-system passes"),
            pytest.param(Hook.VALIDATE_WORKLOADS, review(deployment({"bad": "x"}), group="apps", kind="Deployment"),
                False, id="a workload with an invalid template is denied"),
            pytest.param(Hook.MUTATE_BIND_REQUESTS, review(bind_request(podUID="other"), group="scheduling.run.ai",
                kind="BindRequest"), False, id="a request that contradicts its owner is denied"),
        ],
    )  # fmt: skip
    def test_verdicts(self, hook: Hook, document: Any, allowed: bool) -> None:
        assert answer(hook, document)["allowed"] is allowed

    @pytest.mark.parametrize("hook", Hook)
    def test_a_kind_that_the_hook_is_not_for_passes_with_a_warning(self, hook: Hook) -> None:
        response = answer(hook, review({"metadata": {}}, kind="ConfigMap"))
        assert response["allowed"]
        assert len(response["warnings"]) == 1
        assert response["auditAnnotations"]["rules"] == "review/kind"

    def test_the_validating_hook_is_final_and_the_mutating_is_not(self) -> None:
        # A share that mutation has not prepared is denied at validation, which cannot correct it.
        hooks = (Hook.MUTATE_PODS, Hook.VALIDATE_PODS)
        audits = [
            response_of(hook, review(pod({"gpu-fraction": "2"})), built_in())["auditAnnotations"] for hook in hooks
        ]
        assert [annotations["rules"] for annotations in audits] == [
            "gpu_request/fraction-range",
            "gpu_request/fraction-range,gpu_sharing/unprepared,runtime_class/missing",
        ]


class TestMalformed:
    @pytest.mark.parametrize(
        ("body", "part"),
        [
            pytest.param(b"", "not JSON", id="nothing"),
            pytest.param(b"[" * 100_000, "not JSON", id="nothing but brackets"),
            pytest.param(b"[]", "kind must be", id="a list"),
            pytest.param(b'{"kind":"AdmissionReview"}', "apiVersion must be", id="no version"),
            pytest.param(b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v2"}', '"admission.k8s.io/v2"',
                id="another"),
            pytest.param(encode({**review(pod()), "request": None}), "request must be", id="no request"),
            pytest.param(encode(review(pod(), uid="")), "request.uid", id="an empty uid"),
            pytest.param(encode(review(pod(), uid=7)), "request.uid", id="a uid that is a number"),
        ],
    )  # fmt: skip
    def test_a_review_that_cannot_be_answered_states_the_reason(self, body: bytes, part: str) -> None:
        with pytest.raises(MalformedReviewError) as caught:
            decode_review(body)
        assert part in str(caught.value)

    @pytest.mark.parametrize(
        ("document", "path"),
        [
            pytest.param(review(None), "request.object", id="a creation without an object"),
            pytest.param(review(pod(), operation="UPDATE"), "request.oldObject", id="an update without the old one"),
            pytest.param(review(pod(), namespace=["x"]), "request.namespace", id="a namespace that is a list"),
            pytest.param(review(pod(), operation=1), "request.operation", id="an operation that is a number"),
            pytest.param(review(pod(), kind={"kind": []}), "request.kind", id="a kind that is a list"),
            pytest.param(review({}), "metadata", id="an empty pod"),
        ],
    )
    def test_a_review_with_a_uid_is_denied_with_the_path(self, document: Any, path: str) -> None:
        response = answer(Hook.VALIDATE_PODS, document)
        assert not response["allowed"]
        assert response["status"]["details"]["causes"][0]["field"].startswith(path)

    @pytest.mark.parametrize("hook", Hook)
    def test_deep_nesting_is_answered(self, hook: Hook) -> None:
        group, kind = hook.object_kind or ("apps", "Deployment")
        deep_json = b'{"template":' * 1000 + b"1" + b"}" * 1000
        for place in ("metadata", "spec", "unknown"):
            raw = {"metadata": {}, "spec": {}, place: "DEEP"}
            body = encode(review(raw, {}, group=group, kind=kind)).replace(b'"DEEP"', deep_json)
            incoming = decode_review(body)
            assert b'"uid":"uid-1"' in encode_answer(incoming, review_object(hook, incoming, built_in()))


@pytest.mark.parametrize(
    ("name", "metadata", "expectation"),
    [
        ("given", {"name": "a"}, "given"),
        ("", {"name": "a", "generateName": "b-"}, "a"),
        ("", {"generateName": "b-"}, "b-*"),
        ("", {}, ""),
        ("", {"name": 1, "generateName": []}, ""),
    ],
)
def test_a_denial_has_the_name_of_the_object(name: str, metadata: Any, expectation: str) -> None:
    response = answer(Hook.VALIDATE_PODS, review({"metadata": metadata, "spec": []}, name=name))
    assert response["status"]["details"]["name"] == expectation
