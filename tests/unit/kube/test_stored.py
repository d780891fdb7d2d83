"""A write is compared with what is stored: every field of the write, and nothing that others add."""

from typing import Any

import pytest

from bowline.api.meta import ObjectKey
from bowline.kube.errors import NotStoredError
from bowline.kube.resources import PODS
from bowline.kube.stored import differences, is_stored, require_stored

OWNER = {"kind": "Pod", "name": "p", "uid": "1"}


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ({"metadata": {"labels": {"a": "b", "gone": None}}}, {"metadata": {"labels": {"a": "b", "added": "c"}}}),
        ({"metadata": {"annotations": {"gone": None}}}, {"metadata": {}}),
        ({"metadata": {"uid": "1", "resourceVersion": "7"}}, {"metadata": {"uid": "1", "resourceVersion": "8"}}),
        ({"metadata": {"finalizers": ["a"]}}, {"metadata": {"finalizers": ["added", "a"]}}),
        ({"metadata": {"ownerReferences": [OWNER]}}, {"metadata": {"ownerReferences": [OWNER | {"added": True}]}}),
        ({"data": {}, "immutable": False, "spec": {"tolerations": [], "name": ""}}, {"spec": {}}),
        ({"spec": {"limits": {"cpu": "1000m"}}}, {"spec": {"limits": {"cpu": "1"}}}),
        ({"spec": {"requests": [{"name": "r"}]}}, {"spec": {"requests": [{"name": "r", "exactly": {"count": 1}}]}}),
        ({"status": {"reservedFor": [OWNER]}}, {"status": {"reservedFor": [OWNER], "devices": []}}),
    ],
)  # fmt: skip
def test_additions_and_equal_values_are_no_difference(written: dict[str, Any], stored: dict[str, Any]) -> None:
    assert is_stored(written, stored)


@pytest.mark.parametrize(
    ("written", "stored", "path"),
    [
        ({"metadata": {"labels": {"a/b": "c"}}}, {"metadata": {}}, "metadata.labels[a/b]"),
        ({"metadata": {"labels": {"a": None}}}, {"metadata": {"labels": {"a": "c"}}}, "metadata.labels.a"),
        ({"metadata": {"uid": "1"}}, {"metadata": {"uid": "2"}}, "metadata.uid"),
        ({"metadata": {"finalizers": ["a"]}}, {"metadata": {"finalizers": ["b"]}}, "metadata.finalizers[0]"),
        ({"metadata": {"ownerReferences": [OWNER]}}, {"metadata": {}}, "metadata.ownerReferences[0]"),
        ({"data": {"GPU_DEVICES": "1"}}, {"data": {"GPU_DEVICES": "all"}}, "data[GPU_DEVICES]"),
        ({"data": {"share": "500m"}}, {"data": {"share": "0.5"}}, "data.share"),
        ({"data": {"share": "1"}}, {"data": {"share": "1", "LD_PRELOAD": "x"}}, "data[LD_PRELOAD]"),
        ({"data": {}}, {"data": {"share": "1"}}, "data.share"),
        ({"spec": {"limits": {"cpu": "1"}}}, {"spec": {"limits": {"cpu": "2"}}}, "spec.limits.cpu"),
        ({"spec": {"nodeName": "a"}}, {"spec": "text"}, "spec.nodeName"),
        ({"status": {"reservedFor": [OWNER]}}, {"status": {"reservedFor": [OWNER, {}]}}, "status.reservedFor"),
        ({"status": {"requests": ["a", "b"]}}, {"status": {"requests": ["b", "a"]}}, "status.requests[0]"),
    ],
)  # fmt: skip
def test_a_field_that_is_stored_otherwise_is_named(
    written: dict[str, Any], stored: dict[str, Any], path: str
) -> None:
    assert next(differences(written, stored)).path == path
    with pytest.raises(NotStoredError, match=r"^Pod ns/p: ") as failure:
        require_stored(PODS, ObjectKey("ns", "p"), written, stored)
    assert path in str(failure.value)
    assert failure.value.stored is stored
