"""Which annotations a Binding may contain, and the outcome of each reply to it."""

import pytest

from bowline.api.field_error import FieldError
from bowline.api.rule import Rule
from bowline.kube.binding import MAX_ANNOTATION_BYTES, BindOutcome, annotation_errors, classify_error, label_errors
from bowline.kube.errors import ApiError, ApiStatus, Cause, from_status

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
        pytest.param("", id="nothing"),
        pytest.param("a b", id="a blank"),
        pytest.param("-a", id="a dash in front"),
        pytest.param("/a", id="an empty prefix"),
        pytest.param("a/", id="an empty name"),
        pytest.param("a_b.dev/c", id="an underscore in the prefix"),
        pytest.param("x" * 64, id="a name too long"),
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


@pytest.mark.parametrize(
    ("status", "first", "after_a_lost_answer"),
    [
        pytest.param(ApiStatus(404, "NotFound", details={"name": "pod"}), BindOutcome.NOT_FOUND,
            BindOutcome.NOT_FOUND, id="no such pod"),
        pytest.param(ApiStatus(404), BindOutcome.REFUSED, BindOutcome.UNKNOWN, id="a webhook's denial with 404"),
        pytest.param(ApiStatus(409, "Conflict"), BindOutcome.CONFLICT, BindOutcome.CONFLICT,
            id="bound, gated or deleting"),
        pytest.param(ApiStatus(422, "Invalid", causes=OTHER_POD), BindOutcome.CONFLICT, BindOutcome.CONFLICT,
            id="another pod"),
        pytest.param(ApiStatus(422, "Invalid"), BindOutcome.REFUSED, BindOutcome.UNKNOWN, id="rejected by a policy"),
        pytest.param(ApiStatus(403, "Forbidden"), BindOutcome.REFUSED, BindOutcome.UNKNOWN, id="a missing right"),
    ],
)  # fmt: skip
def test_outcome_of_a_reply(status: ApiStatus, first: BindOutcome, after_a_lost_answer: BindOutcome) -> None:
    error = from_status(status)
    assert isinstance(error, ApiError)
    assert classify_error(error, may_be_applied=False).outcome is first
    assert classify_error(error, may_be_applied=True).outcome is after_a_lost_answer


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
