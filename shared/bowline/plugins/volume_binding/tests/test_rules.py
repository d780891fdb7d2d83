"""The meaning of a claim, a volume and a node for a pod; which volume is chosen, written and reported."""

from datetime import timedelta
from typing import Any

import pytest

from bowline.api.meta import ObjectKey, ObjectUID
from bowline.api.pod_volumes import PodVolume, pod_volumes
from bowline.api.selectors import Node
from bowline.framework.interface.status import Done, Fatal, Status, Waiting
from bowline.framework.interface.waiting import PREREQUISITE
from bowline.framework.reason import Reason, Suggestion
from bowline.plugins.volume_binding.rules import (
    MAX_CLAIMS,
    BindVolume,
    Bound,
    ProvisioningStarted,
    Unbound,
    check_claim,
    check_count,
    check_reserved,
    check_unbound,
    check_volume,
    choose,
    claim_ref_patch,
    selected_node_patch,
    waits_for_volumes,
)
from bowline.plugins.volume_binding.tests.builders import NODE, POD, SCRATCH, WANTED, claim, cls, reference, volume
from bowline.plugins.volume_binding.volumes import PersistentVolumeClaim, Volume

CSI = "csi.example.com"
DONE = {"pv.kubernetes.io/bind-completed": "yes"}
SELECTED = "volume.kubernetes.io/selected-node"
DELETING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


def facts_of(status: Any) -> tuple[type[Status], Reason | timedelta | None, Suggestion | None]:
    assert isinstance(status, Status), status
    cause = status.timeout if isinstance(status, Waiting) else getattr(status, "reason", None)
    return type(status), cause, getattr(status, "suggestion", None)


ELSEWHERE = Suggestion.RESCHEDULE_ELSEWHERE
# What the scheduler could have awaited is awaited briefly.
FINE, WAITING = (Done, None, None), (Waiting, PREREQUISITE, None)
ENDED = Fatal, Reason.VOLUME_CONFLICT, None
ENDED_HERE = Fatal, Reason.VOLUME_CONFLICT, ELSEWHERE
POD_ENDED = Fatal, Reason.VOLUME_CONFLICT, Suggestion.DELETE_POD

# --- the claims of a pod ---


def pod_with(*volumes: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": POD["metadata"], "spec": {"volumes": list(volumes)}}


@pytest.mark.parametrize("ephemeral_first", [False, True])
def test_a_claim_mounted_in_both_ways_must_be_the_pods_own(ephemeral_first: bool) -> None:
    by_name = {"name": "named", "persistentVolumeClaim": {"claimName": "pod-scratch"}}
    ephemeral_volume = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}}
    pod = pod_with(ephemeral_volume, by_name) if ephemeral_first else pod_with(by_name, ephemeral_volume)
    assert pod_volumes(pod) == [SCRATCH]


def test_claims_by_name_and_made_for_the_pod_each_once() -> None:
    pod = pod_with(
        {"name": "a", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}},
        {"name": "cache", "emptyDir": {}},
        {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {}}},
        {"name": "b", "persistentVolumeClaim": {"claimName": "data"}},
    )
    assert pod_volumes(pod) == [PodVolume(ObjectKey("ns", "data"), "a", ephemeral=False), SCRATCH]


# --- a single claim ---


def owner_meta(
    kind: str = "Pod", name: str = "pod", uid: str = "pod-uid", *, controller: bool = True
) -> dict[str, Any]:
    return {"ownerReferences": [{"kind": kind, "name": name, "uid": uid, "controller": controller}]}


ENDING_CLAIMS: list[Any] = [
    pytest.param(WANTED, None, WAITING, id="a claim that is not there"),
    pytest.param(SCRATCH, None, WAITING, id="a claim that the controller has yet to make"),
    pytest.param(WANTED, claim(meta=DELETING, annotations=DONE, volumeName="v"), ENDED, id="a claim that is going"),
    pytest.param(WANTED, claim(status={"phase": "Lost"}, annotations=DONE, volumeName="v"),
        ENDED, id="a claim that has lost its volume"),
    pytest.param(SCRATCH, claim("pod-scratch"), POD_ENDED, id="a claim without an owner"),
    pytest.param(SCRATCH, claim("pod-scratch", meta=owner_meta("StatefulSet", "pod", "x")), POD_ENDED,
        id="a claim of something else of the name"),
    pytest.param(SCRATCH, claim("pod-scratch", meta=owner_meta(controller=False)), POD_ENDED,
        id="a claim that the pod owns but does not control"),
    pytest.param(SCRATCH, claim("pod-scratch", meta=owner_meta(uid="earlier") | DELETING),
        WAITING, id="a claim of the pod's predecessor"),
]  # fmt: skip


@pytest.mark.parametrize(("pod_volume", "existing_claim", "expected"), ENDING_CLAIMS)
def test_a_claim_that_ends_the_check(
    pod_volume: PodVolume, existing_claim: PersistentVolumeClaim | None, expected: Any
) -> None:
    status = check_claim(pod_volume, existing_claim, POD)
    assert facts_of(status) == expected
    if isinstance(status, Status) and isinstance(status, Waiting):
        assert [ref.key for ref in status.wake_on] == [pod_volume.claim]


def expressions(count: int) -> Any:
    return {"matchExpressions": [{"key": f"k{number}", "operator": "Exists"} for number in range(count)]}


@pytest.mark.parametrize(
    ("selector", "is_invalid"),
    [
        pytest.param(expressions(512), False, id="at the bound"),
        pytest.param(expressions(513), True, id="expressions"),
        pytest.param({"matchExpressions": [{"key": "a", "operator": "In", "values": ["x"] * 512}]}, True,
            id="values"),
        pytest.param({"matchLabels": {f"k{number}": "" for number in range(513)}}, True, id="labels"),
    ],
)  # fmt: skip
def test_a_selector_beyond_the_bound_is_not_evaluated(selector: Any, is_invalid: bool) -> None:
    """The user chooses its length, and each free volume of the class is compared with it."""
    result = check_unbound(claim(selector=selector), cls(), NODE, requested_before=False)
    assert isinstance(result, Status) is is_invalid
    if isinstance(result, Status):
        assert isinstance(result, Fatal)
        assert result.reason is Reason.INVALID


def test_a_pod_with_more_claims_than_any_node_attaches_is_invalid() -> None:
    volumes = [PodVolume(ObjectKey("ns", f"c{number}"), "v", ephemeral=False) for number in range(MAX_CLAIMS + 1)]
    assert isinstance(check_count(volumes[:-1]), Done)
    assert facts_of(check_count(volumes)) == (Fatal, Reason.INVALID, Suggestion.DELETE_POD)


def test_a_bound_claim_and_one_to_check() -> None:
    bound = claim(volumeName="v", annotations=DONE)
    assert check_claim(WANTED, bound, POD) == Bound(bound)
    mine = claim("pod-scratch", meta=owner_meta())
    assert check_claim(SCRATCH, mine, POD) == mine
    # The annotation counts, whatever its value; without it the controller is not done.
    half = claim(volumeName="v")
    assert check_claim(WANTED, half, POD) == half


# --- a claim without a volume ---


ENDING_UNBOUND: list[Any] = [
    pytest.param(claim(volumeName="v"), cls(), False, WAITING, id="bound by hand, not by the controller yet"),
    pytest.param(claim(storageClassName=""), None, False, WAITING, id="no class"),
    pytest.param(claim(), None, False, WAITING, id="a class that is not there"),
    pytest.param(claim(), cls(CSI, "Immediate"), False, WAITING, id="a class that does not wait for pods"),
    pytest.param(claim(annotations={SELECTED: "node-7"}), cls(CSI), False,
        ENDED_HERE, id="asked for on another node: never overwritten"),
    pytest.param(claim(), cls(CSI), True, ENDED_HERE, id="requested here before and rejected"),
]  # fmt: skip


@pytest.mark.parametrize(("existing_claim", "its_class", "requested_before", "expected"), ENDING_UNBOUND)
def test_an_unbound_claim_that_ends_the_check(
    existing_claim: PersistentVolumeClaim, its_class: Any, requested_before: bool, expected: Any
) -> None:
    result = check_unbound(existing_claim, its_class, NODE, requested_before)
    assert facts_of(result) == expected


UNPROVISIONED: list[Any] = [
    pytest.param(cls(), ENDED, id="a class without a provisioner"),
    pytest.param(cls(CSI, allowedTopologies=[{"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]}]),
        ENDED_HERE, id="a class for other nodes"),
]  # fmt: skip


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize(("its_class", "expected"), UNPROVISIONED)
def test_a_volume_that_cannot_be_provisioned_is_not_awaited(its_class: Any, expected: Any, before: bool) -> None:
    selected_claim = claim(annotations={SELECTED: "node-0"})
    assert facts_of(check_unbound(selected_claim, its_class, NODE, requested_before=before)) == expected


def test_an_unbound_claim_to_continue_with() -> None:
    selected_claim = claim(annotations={SELECTED: "node-0"})
    assert check_unbound(selected_claim, cls(CSI), NODE, requested_before=False) == ProvisioningStarted(
        selected_claim
    )
    assert check_unbound(selected_claim, cls(CSI), NODE, requested_before=True) == ProvisioningStarted(selected_claim)
    assert check_unbound(claim(), cls(), NODE, requested_before=False) == Unbound(claim(), cls())


# --- the volume of a bound claim ---


BOUND_VOLUMES: list[Any] = [
    pytest.param(volume(), FINE, id="a volume without affinity"),
    pytest.param(volume(node="node-0", phase="Bound"), FINE, id="the node's own"),
    pytest.param(volume(node="node-1"), ENDED_HERE, id="of another"),
    pytest.param(None, ENDED, id="a deleted volume"),
]  # fmt: skip


@pytest.mark.parametrize(("bound_volume", "expected"), BOUND_VOLUMES)
def test_the_volume_of_a_bound_claim(bound_volume: Volume | None, expected: Any) -> None:
    assert facts_of(check_volume(claim(volumeName="v"), bound_volume, NODE)) == expected


def affinity(*requirements: str) -> dict[str, Any]:
    """Return a required affinity: ``key=value`` each."""
    expressions = [
        {"key": key, "operator": "In", "values": [value]}
        for key, _, value in (text.partition("=") for text in requirements)
    ]
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}}


BETA = affinity("failure-domain.beta.kubernetes.io/zone=a", "failure-domain.beta.kubernetes.io/region=r")
STABLE = affinity("topology.kubernetes.io/zone=a", "topology.kubernetes.io/region=r")
REGION = {"topology.kubernetes.io/region": "r"}
IN_TREE: list[Any] = [
    pytest.param("awsElasticBlockStore", BETA, {"topology.ebs.csi.aws.com/zone": "a", **REGION}, True, id="AWS"),
    pytest.param("awsElasticBlockStore", BETA, {"topology.ebs.csi.aws.com/zone": "b", **REGION}, False,
        id="AWS, in another zone"),
    pytest.param("awsElasticBlockStore", BETA, {"topology.ebs.csi.aws.com/zone": "a"}, False, id="AWS, in no region"),
    pytest.param("gcePersistentDisk", STABLE, {"topology.gke.io/zone": "a", **REGION}, True, id="Google"),
    pytest.param("gcePersistentDisk", STABLE, {"topology.kubernetes.io/zone": "a", **REGION}, True,
        id="Google, on a node without the driver"),
    pytest.param("cinder", BETA, {"topology.cinder.csi.openstack.org/zone": "a", **REGION}, True, id="OpenStack"),
    pytest.param("vsphereVolume", STABLE,
        {"topology.csi.vmware.com/zone": "a", "topology.csi.vmware.com/region": "r"}, True, id="vSphere"),
    pytest.param("csi", BETA, {"topology.ebs.csi.aws.com/zone": "a", **REGION}, False, id="no in-tree volume"),
]  # fmt: skip


@pytest.mark.parametrize(("source", "required", "labels", "is_usable"), IN_TREE)
def test_an_in_tree_volume_can_be_used_where_its_csi_driver_serves_the_zone(
    source: str, required: dict[str, Any], labels: dict[str, str], is_usable: bool
) -> None:
    fields: dict[str, Any] = {source: {}, "nodeAffinity": required}
    in_tree = volume(**fields)
    assert in_tree.reaches(Node("node-0", labels)) is is_usable


# --- the choice ---


def choose_names(*unbound: Unbound, volumes: tuple[Volume, ...] = (), unavailable_name: str = "") -> Any:
    result = choose(unbound, NODE, volumes, lambda volume, _: volume.name == unavailable_name)
    if isinstance(result, Status):
        return facts_of(result)
    return [
        (choice.claim.key.name, choice.volume.name if isinstance(choice, BindVolume) else "asked")
        for choice in result
    ]


LARGE, MANY = {"size": "2Gi"}, {"accessModes": ["ReadWriteMany", "ReadOnlyMany"]}


@pytest.mark.parametrize(
    ("first", "second", "volumes", "expected"),
    [
        pytest.param({}, {}, (volume("v"), volume("w")), [("a", "v"), ("b", "w")], id="never the same volume"),
        pytest.param(LARGE, {}, (volume("v2", **LARGE), volume("v1")), [("b", "v1"), ("a", "v2")],
            id="the smaller one does not get the only volume for the larger one"),
        pytest.param({}, MANY, (volume(),), ENDED_HERE, id="none unless both get one"),
    ],
)  # fmt: skip
def test_the_volumes_of_two_claims(first: Any, second: Any, volumes: tuple[Volume, ...], expected: Any) -> None:
    a, b = Unbound(claim("a", **first), cls()), Unbound(claim("b", **second), cls())
    assert choose_names(a, b, volumes=volumes) == expected


@pytest.mark.parametrize(
    ("fields", "mode", "labels"),
    [
        ({}, "Filesystem", ""),
        ({"volumeMode": "Block"}, "Block", ""),
        ({"selector": {"matchLabels": {"a": "b"}}}, "Filesystem", " and labels that its selector selects"),
    ],
)
def test_what_a_missing_volume_must_have_is_named(fields: dict[str, Any], mode: str, labels: str) -> None:
    status = choose((Unbound(claim(**fields), cls()),), NODE, (), lambda *_: False)
    assert isinstance(status, Fatal)
    kind = f"{mode} PersistentVolume of class late with at least 1Gi, ReadWriteOnce{labels}, as "
    assert status.message.startswith(f"the node can use no free {kind}")


def test_a_free_volume_is_preferred_to_provisioning() -> None:
    wants = Unbound(claim(), cls(CSI))
    assert choose_names(wants, volumes=(volume(),)) == [("data", "v")]
    assert choose_names(wants) == [("data", "asked")]
    assert choose_names(wants, volumes=(volume(),), unavailable_name="v") == [("data", "asked")]
    assert choose_names(wants, volumes=(volume(phase="Pending"),)) == [("data", "asked")]


def test_a_class_for_other_topologies_is_not_used() -> None:
    only = {"matchLabelExpressions": [{"key": "zone", "values": ["b"]}]}
    elsewhere = Fatal, Reason.VOLUME_CONFLICT, ELSEWHERE
    assert choose_names(Unbound(claim(), cls(CSI, allowedTopologies=[only]))) == elsewhere
    # An existing volume may have been created under other rules; its own affinity decides.
    assert choose_names(Unbound(claim(), cls(CSI, allowedTopologies=[only])), volumes=(volume(),)) == [("data", "v")]


def test_a_new_volume_is_awaited() -> None:
    result = choose([Unbound(claim(), cls())], NODE, [volume(phase="Pending")], lambda *_: False)
    assert isinstance(result, Status)
    assert isinstance(result, Waiting)
    assert (result.timeout, result.suggestion) == (PREREQUISITE, ELSEWHERE)
    assert [ref.kind for ref in result.wake_on] == ["PersistentVolume", "PersistentVolumeClaim"]


# --- writes ---

REFERENCE = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "namespace": "ns",
    "name": "data",
    "uid": "uid-data",
    "resourceVersion": "7",
}


GUARDED = {"resourceVersion": "3", "uid": "uid-v"}
MARKED = {**GUARDED, "annotations": {"pv.kubernetes.io/bound-by-controller": "yes"}}


@pytest.mark.parametrize(
    ("fields", "metadata"),
    [
        pytest.param({}, MARKED, id="a free one"),
        pytest.param({"claimRef": reference()}, GUARDED, id="one reserved by hand gets the UID and no mark"),
        pytest.param({"claimRef": reference(uid="uid-data")}, None, id="the claim's own is not written"),
    ],
)
def test_a_volume_is_reserved_for_the_claim(fields: dict[str, Any], metadata: dict[str, Any] | None) -> None:
    expected = None if metadata is None else {"metadata": metadata, "spec": {"claimRef": REFERENCE}}
    assert claim_ref_patch(volume(**fields), claim()) == expected


def test_a_volume_is_requested_by_one_annotation_beside_the_record_of_its_request() -> None:
    annotations = {SELECTED: "node-0", "bowline.dev/prepared-for": "uid-request"}
    assert selected_node_patch(claim(), NODE.name, ObjectUID("uid-request")) == {
        "metadata": {"uid": "uid-data", "resourceVersion": "7", "annotations": annotations}
    }


# --- reports ---


def test_a_wait_is_woken_by_every_claim_and_its_volume() -> None:
    take = BindVolume(claim("a"), volume())
    status = waits_for_volumes([take], [claim("b"), claim("c")], timedelta(seconds=120))
    assert isinstance(status, Waiting)
    assert [(ref.kind, ref.key.name, ref.resource_version) for ref in status.wake_on] == [
        ("PersistentVolumeClaim", "a", "7"),
        ("PersistentVolume", "v", "3"),
        ("PersistentVolumeClaim", "b", "7"),
        ("PersistentVolumeClaim", "c", "7"),
    ]


@pytest.mark.parametrize("timeout", [None, timedelta(seconds=120)])
def test_a_volume_that_is_not_provisioned_suggests_another_node(timeout: timedelta | None) -> None:
    status = waits_for_volumes([], [claim()], timeout)
    assert (status.timeout, status.suggestion) == (timeout, ELSEWHERE)


@pytest.mark.parametrize(
    ("bound_volume", "withdrawn"),
    [
        pytest.param(volume(claimRef=reference(uid="uid-data")), False, id="still the claim's"),
        pytest.param(volume(meta=DELETING), False, id="being deleted: another volume is chosen"),
        pytest.param(volume(), True, id="the claimRef was removed"),
        pytest.param(volume(claimRef=reference()), True, id="its UID was removed"),
        pytest.param(volume(claimRef=reference("other", uid="u")), True, id="another claim's"),
    ],
)
def test_a_bound_volume_must_remain_the_claims(bound_volume: Volume, withdrawn: bool) -> None:
    status = check_reserved(claim(), bound_volume)
    if withdrawn:
        assert facts_of(status) == (Fatal, Reason.VOLUME_CONFLICT, ELSEWHERE)
    else:
        assert status is None
