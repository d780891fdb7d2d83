"""Which volume a claim gets: the complete match, one rule per line."""

from typing import Any

import pytest

from bowline.plugins.volume_binding.matching import find_volume
from bowline.plugins.volume_binding.tests.builders import NODE, claim, reference, volume
from bowline.plugins.volume_binding.volumes import PersistentVolumeClaim, Volume


def match_names(claim_fields: PersistentVolumeClaim, *volumes: Volume, unavailable_name: str = "") -> tuple[str, str]:
    """Return the names of the volume to use and of those that may fit soon."""
    result = find_volume(claim_fields, NODE, volumes, lambda v: v.name == unavailable_name)
    return (result.volume.name if result.volume else "", result.soon.name if result.soon else "")


READ_MANY = {"accessModes": ["ReadWriteMany"]}
BLOCK = {"volumeMode": "Block"}
FAST = {"volumeAttributesClassName": "fast"}
BETA = {"annotations": {"volume.beta.kubernetes.io/storage-class": "late"}}


@pytest.mark.parametrize(
    ("claim_fields", "volume_fields", "name"),
    [
        pytest.param({}, [{}], "v0", id="one that fits"),
        pytest.param({}, [{"size": "5Gi"}, {"size": "2Gi"}, {"size": "3Gi"}], "v1", id="the smallest that fits"),
        pytest.param({}, [{"size": "1023Mi"}], "", id="too small by a little"),
        pytest.param({"size": "1073741824"}, [{"size": "1Gi"}], "v0", id="exactly large enough, written otherwise"),
        pytest.param({}, [{"size": "2Gi"}, {"size": "2Gi"}], "v0", id="of equals, the first by name"),
        pytest.param({}, [{"storageClassName": "other"}], "", id="another class"),
        pytest.param({"storageClassName": "x", "annotations": BETA["annotations"]}, [{}], "v0",
            id="the old annotation"),
        pytest.param({}, [{"storageClassName": "x", "meta": BETA}], "v0", id="the old annotation on the volume"),
        pytest.param(BLOCK, [{}, {**BLOCK, "size": "9Gi"}], "v1", id="a block device is wanted"),
        pytest.param({}, [BLOCK], "", id="a file system is the default"),
        pytest.param(READ_MANY, [{}], "", id="an access mode it has not"),
        pytest.param({}, [{"accessModes": ["ReadWriteOnce", "ReadOnlyMany"]}], "v0",
            id="more access modes than asked"),
        pytest.param(FAST, [{}, {**FAST, "size": "2Gi"}], "v1", id="an attributes class"),
        pytest.param({}, [FAST], "", id="an attributes class that was not requested"),
        pytest.param({}, [{"node": "node-1"}], "", id="one of another node"),
        pytest.param({"selector": {"matchLabels": {"a": "b"}}}, [{}], "", id="a selector it does not fit"),
        pytest.param({"selector": {"matchLabels": {"a": "b"}}}, [{}, {"meta": {"labels": {"a": "b"}}, "size": "2Gi"}],
            "v1", id="a selector it fits"),
        pytest.param({}, [{"phase": "Released"}], "", id="a used one"),
        pytest.param({}, [{"meta": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}], "", id="one that is going"),
        pytest.param({}, [{"claimRef": reference("other")}], "", id="kept for another claim"),
        pytest.param({}, [{"claimRef": reference(uid="old")}], "", id="kept for an earlier claim of the name"),
        pytest.param({}, [{}, {"claimRef": reference(), "size": "9Gi"}], "v1", id="kept for it by name wins"),
        pytest.param({}, [{}, {"claimRef": reference(uid="uid-data")}], "v1", id="kept for it by UID wins"),
        pytest.param({}, [{}, {"claimRef": reference(uid="uid-data"), "phase": "Bound"}], "v1",
            id="reserved and partly bound"),
        pytest.param({}, [{}, {"claimRef": reference(), "node": "node-1"}], "", id="kept for it elsewhere: no other"),
        pytest.param({}, [{}, {"claimRef": reference(), "size": "1Mi"}], "v0", id="kept for it but too small"),
    ],
)  # fmt: skip
def test_the_volume_of_a_claim(claim_fields: dict[str, Any], volume_fields: list[dict[str, Any]], name: str) -> None:
    volumes = [volume(f"v{number}", **fields) for number, fields in enumerate(volume_fields)]
    assert match_names(claim(**claim_fields), *volumes)[0] == name
    # Their order in the cache makes no difference.
    assert match_names(claim(**claim_fields), *reversed(volumes))[0] == name


def test_a_volume_chosen_for_another_claim_is_skipped() -> None:
    assert match_names(claim(), volume("a"), volume("b"), unavailable_name="a") == ("b", "")
    assert match_names(claim(), volume("a"), unavailable_name="a") == ("", "")


def test_a_new_volume_is_awaited_unless_another_is_available() -> None:
    assert match_names(claim(), volume("new", phase="Pending")) == ("", "new")
    assert match_names(claim(), volume("new", phase=""), volume("old", size="2Gi")) == ("old", "")
    assert match_names(claim(), volume("new", phase="Pending", node="node-1")) == ("", "")
