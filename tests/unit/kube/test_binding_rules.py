"""Which annotations a Binding may contain, and the outcome of each reply to it."""

from typing import Any

import pytest

from bowline.api.field_error import FieldError
from bowline.api.meta import ObjectKey, ObjectUID
from bowline.api.rule import Rule
from bowline.kube.binding import MAX_ANNOTATION_BYTES, BindOutcome, annotation_errors, label_errors, post_binding
from bowline.kube.client import KubeClient
from bowline.kube.errors import ApiStatus, Cause, ConnectionFailed, KubeError, NoResponse, from_status

OTHER_POD = (Cause("FieldValueInvalid", "field is immutable", "metadata.uid"),)


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("EXAMPLE.com/x", id="a prefix in capitals"),
        pytest.param("x" * 63, id="the longest name"),
        pytest.param(f"{'a.' * 126}a/x", id="the longest prefix"),
    ],
)
def test_valid_keys(key: str) -> None:
    assert annotation_errors({key: "1"}, {}) == []


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("a b", id="a blank"),
        pytest.param("/a", id="an empty prefix"),
        pytest.param("a_b.dev/c", id="an underscore in the prefix"),
        pytest.param(f"{'a.' * 127}a/x", id="a prefix too long"),
        pytest.param("ä", id="beyond ASCII"),
        pytest.param("a\n", id="a line break at the end"),
    ],
)
def test_invalid_keys(key: str) -> None:
    (fault,) = annotation_errors({key: "value"}, {"fine": "1"})
    # Paths of field errors are bounded and printable.
    path = FieldError(Rule("binding/annotation-key", "a test's"), f"metadata.annotations[{key}]", "value", "").path
    assert path.startswith("metadata.annotations[")
    assert path.isprintable()
    assert (fault.rule.id, fault.path, fault.value) == ("binding/annotation-key", path, "value")


@pytest.mark.parametrize(
    ("annotations", "present", "errors"),
    [
        pytest.param({"a": "x" * (MAX_ANNOTATION_BYTES - 1)}, {}, 0, id="exactly as much as there may be"),
        pytest.param({"a": "x" * MAX_ANNOTATION_BYTES}, {}, 1, id="one byte too many"),
        pytest.param({"a": "1"}, {"b": "x" * (MAX_ANNOTATION_BYTES - 2)}, 1, id="those of the pod count"),
        pytest.param({"a": "1"}, {"a": "x" * MAX_ANNOTATION_BYTES}, 0, id="one that is replaced does not"),
        pytest.param({"a": "ü" * (MAX_ANNOTATION_BYTES // 2)}, {}, 1, id="bytes count, not characters"),
    ],
)
def test_size(annotations: dict[str, str], present: dict[str, str], errors: int) -> None:
    assert len(annotation_errors(annotations, present)) == errors


class Replies(KubeClient):
    """Ends each create as the test states."""

    def __init__(self, reply: KubeError) -> None:
        self.reply = reply

    async def create(self, *args: Any, **options: Any) -> dict[str, Any]:
        raise self.reply


WEBHOOK_DOWN = ApiStatus(500, "InternalError", 'failed calling webhook "guard.example.com": refused')


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        pytest.param(from_status(ApiStatus(404, "NotFound", details={"name": "pod"})), BindOutcome.NOT_FOUND,
            id="no such pod"),
        pytest.param(from_status(ApiStatus(404)), BindOutcome.REFUSED, id="a webhook's denial with 404"),
        pytest.param(from_status(ApiStatus(409, "Conflict")), BindOutcome.CONFLICT, id="bound, gated or deleting"),
        pytest.param(from_status(ApiStatus(422, "Invalid", causes=OTHER_POD)), BindOutcome.CONFLICT,
            id="another pod"),
        pytest.param(from_status(ApiStatus(422, "Invalid")), BindOutcome.REFUSED, id="rejected by a policy"),
        pytest.param(from_status(ApiStatus(403, "Forbidden")), BindOutcome.REFUSED, id="a missing right"),
        pytest.param(NoResponse("reset"), BindOutcome.UNKNOWN, id="no reply"),
        pytest.param(from_status(ApiStatus(504, "Timeout", "etcd")), BindOutcome.UNKNOWN, id="a timeout in it"),
        pytest.param(ConnectionFailed("refused"), None, id="no connection"),
        pytest.param(from_status(ApiStatus(429)), None, id="not executed"),
        pytest.param(from_status(WEBHOOK_DOWN), None, id="a webhook that cannot be called"),
    ],
)  # fmt: skip
async def test_outcome_of_a_reply(reply: KubeError, outcome: BindOutcome | None) -> None:
    binding = post_binding(Replies(reply), ObjectKey("default", "a"), ObjectUID("uid"), "n1", {})
    if outcome is None:
        with pytest.raises(type(reply)):
            await binding
    else:
        assert (await binding).outcome is outcome


@pytest.mark.parametrize(
    ("labels", "rules"),
    [
        pytest.param({"example.com/rack": "r1", "empty": ""}, [], id="valid ones"),
        pytest.param({"a b": "x"}, ["binding/label-key"], id="a blank in the key"),
        pytest.param({"a": "x y"}, ["binding/label-value"], id="a blank in the value"),
        pytest.param({"a": "x" * 64}, ["binding/label-value"], id="a value too long"),
    ],
)
def test_labels_that_would_spoil_the_pod_are_rejected(labels: dict[str, str], rules: list[str]) -> None:
    assert [error.rule.id for error in label_errors(labels)] == rules
