"""Conformance: a correct plugin and the built-in ones pass, and each wrong one is named by its check."""

import asyncio
from contextlib import suppress
from typing import Any
from unittest import SkipTest

import pytest

from bowline import ObjectClient
from bowline.api import names
from bowline.errors import Invalid, NotFound
from bowline.framework.interface.plugin import Plugin
from bowline.framework.registry import Builtin
from bowline.localcluster.cluster import Cluster
from bowline.plugins.catalog import BUILTINS
from bowline.plugins.dynamic_resources.plugin import DynamicResources
from bowline.plugins.gpu_sharing.plugin import GpuSharing
from bowline.plugins.hami_core import HamiCore
from bowline.plugins.nv_fractions import NvFractions
from bowline.plugins.volume_binding import VolumeBinding
from bowline.resources import PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, PODS, RESOURCECLAIMS, STORAGECLASSES
from bowline.testing import builders, conformance
from bowline.testing.lab import Lab
from tests.plugins.claims import claim_decisions
from tests.testing import wrong_plugins
from tests.testing.licence import SEATS, Conditional, Licence
from tests.testing.right_plugins import SERVER, Annotating, Asking, Outside, ShortNames, answer, outage
from tests.waiting import LIMIT_S

TestLicence = conformance.suite(Licence, limit_s=LIMIT_S)

# Plugin, check, and words of each of its findings.
WRONG: list[tuple[str, str, *tuple[str, ...]]] = [
    ("Clashing", "class", "built-in plugin"),
    ("Loose", "class", "accept unknown keys"),
    ("ConnectingAtOnce", "class", "constructor does I/O"),
    ("Guessing", "queries", "raises KeyError: 'annotations'", "different answers", "changes the pod",
        "must return True or False"),
    ("Unruly", "admission_results", "mutate_pod must return None", "must return FieldErrors",
        "none of its `rules`", "mutate_ephemeral_containers raises KeyError", "validate_ephemeral_containers raises"),
    ("Impure", "admission_is_pure", "socket", "the clock is read", "that it validates",
        "different results", "changes nothing", "its own result", "changes `raw` itself"),
    # An attempt.
    ("RaisingInBind", "binds", "pre_bind: KeyError"),
    ("Untidy", "binds", "time.sleep", "event loop for more than 1 s: pre_bind",
        "blocking socket.connect", "leaves the task sleep behind", "leaves the thread", "untidy/sweep raises",
        "untidy/on_change raises", "when its term has ended"),
    ("Hanging", "binds", "has not ended after 1.5 s"),
    ("NotSetUp", "binds", "a setup ignores its cancellation"),
    ("Denying", "binds", "webhook denies the Pod"),
    ("Lying", "binds", "the pod is on no node"),
    ("EndingItsTask", "binds", "ends with SystemExit: 3"),
    ("Unwoken", "binds", "no event has ended the wait"),
    ("Unserved", "binds", "event source reports nothing"),
    ("Waiting", "binds", "still waits after 1.5 s: no seat is free"),
    ("Careless", "declared_writes", "has_side_effects is False", "in ctx.shared", "changes ctx.pod"),
    ("Undeclared", "declared_writes", "name_prefix='licence-': ", "no other annotation of a pod"),
    # Crashes, rejections, other leaders, cancellations, outages; a second pod.
    ("CatchingAll", "cancellation", "ignores its cancellation"),
    ("Shielding", "cancellation", "leaves outside: seat of POD"),
    ("Counting", "interrupted_writes", "also has configmaps"),
    ("OutageIsFatal", "interrupted_writes", "FATAL"),
    ("Trusting", "rejected_writes", "was rejected with", "stored without metadata.labels"),
    ("Unconditional", "overtaking_leader", "has another content in configmaps"),
    ("Sharing", "two_pods", "the first pod's metadata"),
    ("FailingInAnOutage", "outage", "ends RETRY", "release returns OK"),
    ("BindingInAnOutage", "outage", "without its effect"),
    # The end of a request.
    ("RememberingWhatToUndo", "rollback", "leaves configmaps"),
    ("ReleasingThePod", "rollback", "a pod that is gone"),
    ("ReleasingThePod", "release", "licence-pod for ever"),
    ("Sweeping", "release", "licence-pod-beside, which another pod", "time.sleep"),
    ("Remembering", "forgets", "self._bound keeps a request", "Remembering.seats keeps",
        "forget: KeyError"),
    ("Overdeclaring", "unused_rights", "declares patch of configmaps",
        "licence.example.com/Seated on pods"),
    # Nothing of these was checked, and it said: no findings.
    ("IndexingThePod", "concerned", "pre_bind: KeyError"),
    ("Unconcerned", "concerned", "not checked: applies is False"),
    ("Skipping", "concerned", "not checked: every method returns SKIP"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "check", "words"), [(target, check, words) for target, check, *words in WRONG])
def test_each_mistake_of_a_wrong_plugin_is_named(
    bowline_cluster: Cluster, target: str, check: str, words: list[str]
) -> None:
    # Only the one that hangs needs all of the limit.
    limit_s = 1.5 if "1.5 s" in words[0] else LIMIT_S
    SERVER.clear()
    checks = () if check == "unused_rights" else [check]  # it looks at what all others have done
    outside: Any = {"effects": lambda: list(SERVER), "outage": outage}
    run = conformance.run(getattr(wrong_plugins, target), bowline_cluster, checks=checks, limit_s=limit_s, **outside)
    messages = [finding.message for finding in run if finding.check == check]
    assert [part for part in words if not any(part in message for message in messages)] == [], messages


def test_a_pod_that_had_no_annotation_is_tried() -> None:
    pod = builders.pod()
    pod["metadata"]["annotations"] = {SEATS: "1"}
    run = conformance.run(wrong_plugins.IndexingOld, None, checks=["admission_results"], pods=[pod])
    assert [str(finding) for finding in run] == [
        "admission_results: validate_pod raises KeyError: 'annotations'; it must return an iterable of FieldErrors"
    ]


def test_what_repeats_an_attempt_is_skipped_where_none_succeeds(bowline_lab: Lab) -> None:
    tests: Any = conformance.suite(wrong_plugins.Waiting, limit_s=1.5)()
    with pytest.raises(AssertionError, match="still waits after"):
        tests.test_binds(bowline_lab)
    with pytest.raises(SkipTest, match="an undisturbed attempt fails"):
        tests.test_interrupted_writes(bowline_lab)
    tests.test_concerned(bowline_lab)


@pytest.mark.parametrize("plugin", [ShortNames, Annotating, Outside])
def test_right_plugins_have_no_finding(bowline_cluster: Cluster, plugin: type[Plugin]) -> None:
    SERVER.clear()
    outside: Any = {"effects": lambda: list(SERVER), "outage": outage}
    assert list(conformance.run(plugin, bowline_cluster, limit_s=LIMIT_S, **outside)) == []


def test_the_pods_that_are_to_be_denied_are_tried() -> None:
    denied = builders.pod("denied")
    (finding,) = conformance.run(Licence, None, checks=["admission_results"], denied=[denied])
    assert "does not deny pod denied" in finding.message
    assert list(conformance.run(wrong_plugins.Denying, None, checks=["admission_results"], denied=[denied])) == []


def test_a_plugin_that_waits_for_another_party_passes_with_its_world(bowline_cluster: Cluster) -> None:
    assert list(conformance.run(Asking, bowline_cluster, world=answer, limit_s=LIMIT_S)) == []


def test_a_precondition_is_enough_for_an_overtaking_leader(bowline_cluster: Cluster) -> None:
    assert list(conformance.run(Conditional, bowline_cluster, checks=["overtaking_leader"], limit_s=LIMIT_S)) == []


# These have tests of their own below, with what concerns them.
CONCERNED = (DynamicResources, GpuSharing, HamiCore, NvFractions, VolumeBinding)
OTHERS = [builtin for builtin in BUILTINS if builtin.plugin not in CONCERNED]


@pytest.mark.parametrize("builtin", OTHERS, ids=lambda builtin: str(builtin.plugin.name))
def test_a_builtin_plugin_conforms(bowline_cluster: Cluster, builtin: Builtin) -> None:
    assert list(conformance.run(builtin.plugin, bowline_cluster, limit_s=LIMIT_S)) == []


NODE = "gpu-node-0"


def test_dynamic_resources_conforms_with_a_claim(bowline_cluster: Cluster) -> None:
    api = bowline_cluster.api
    api.post("/apis/resource.k8s.io/v1/deviceclasses", builders.device_class())
    api.post("/apis/resource.k8s.io/v1/resourceslices", builders.resource_slice(NODE))
    pod = builders.pod(resourceClaims=[{"name": "dev", "resourceClaimName": "dev"}])
    objects = [(RESOURCECLAIMS, builders.resource_claim())]
    run = conformance.run(
        DynamicResources, bowline_cluster, pods=[pod], objects=objects, request=claim_decisions("d0"), limit_s=LIMIT_S
    )
    assert list(run) == []


# The names of its ConfigMaps, which are else derived from the namespace.
NAMED = {names.SHARED_GPU_CONFIGMAP: "half"}
HALF = NAMED | {names.GPU_FRACTION: "0.5"}
IN_NVIDIAS_FORM = NAMED | {f"{names.NV_CONTAINER}main{names.NV_MEMORY_LIMIT}": "20Gi"}
# The crash tests kill the reconciler at each write of a share.
WITHOUT_CRASHES = ("binds", "declared_writes", "rollback", "rejected_writes")
SHARING = [
    pytest.param(GpuSharing, (HamiCore, NvFractions), HALF, WITHOUT_CRASHES, id="gpu_sharing with the others"),
    pytest.param(HamiCore, (), HALF, (), id="hami_core"),
    pytest.param(NvFractions, (), IN_NVIDIAS_FORM, (), id="nv_fractions"),
]


async def report_devices(client: ObjectClient, _: str) -> None:
    """Play the agents of reservation pods: each reports a device, its own UID."""
    while True:
        for metadata in [item["metadata"] for item in await client.list_all(PODS, names.RESERVATION_APP)]:
            if names.RESERVED_DEVICE not in metadata.get("annotations", {}):
                annotations = {names.RESERVED_DEVICE: f"GPU-{metadata['uid']}"}
                body = {"metadata": {"uid": metadata["uid"], "annotations": annotations}}
                with suppress(NotFound, Invalid):  # deleted, perhaps replaced
                    await client.patch(PODS, names.RESERVATION_APP, metadata["name"], body)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize(("plugin", "others", "annotations", "checks"), SHARING)
def test_a_plugin_of_shares_conforms_with_a_share(
    bowline_cluster: Cluster,
    plugin: type[Plugin],
    others: tuple[type[Plugin], ...],
    annotations: dict[str, str],
    checks: tuple[str, ...],
) -> None:
    bowline_cluster.make_runtime_class()
    bowline_cluster.make_namespace(names.RESERVATION_APP)
    pod = builders.pod(runtimeClassName="nvidia")
    pod["metadata"]["annotations"] = annotations
    request = {
        "receivedResourceType": "Fraction",
        "receivedGPU": {"count": 1, "portion": "0.50"},
        "selectedGPUGroups": ["{namespace}"],
    }
    run = conformance.run(
        plugin,
        bowline_cluster,
        checks=checks,
        pods=[pod],
        request=request,
        others=others,
        world=report_devices,
        limit_s=LIMIT_S,
    )
    assert list(run) == []


# The plugin has no rollback, as in kube-scheduler: the PV controller may act on its writes already.
WITHOUT_ROLLBACK = [name for name in conformance.BINDING_CHECKS if name not in ("rollback", "declared_writes")]


def test_volume_binding_conforms_beside_the_pv_controller(bowline_cluster: Cluster) -> None:
    objects = [
        (STORAGECLASSES, builders.storage_class("{namespace}")),
        (PERSISTENTVOLUMES, builders.persistent_volume("{namespace}", node=NODE, storageClassName="{namespace}")),
        (PERSISTENTVOLUMECLAIMS, builders.persistent_volume_claim(storageClassName="{namespace}")),
    ]
    pod = builders.pod(volumes=[{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}])
    run = conformance.run(
        VolumeBinding, bowline_cluster, checks=WITHOUT_ROLLBACK, pods=[pod], objects=objects, limit_s=LIMIT_S
    )
    assert list(run) == []


def test_every_wrong_plugin_is_in_the_table() -> None:
    values = vars(wrong_plugins).items()
    classes = {name for name, value in values if getattr(value, "__module__", "") == wrong_plugins.__name__}
    tested = {target for target, *_ in WRONG}
    tested.add(wrong_plugins.IndexingOld.__name__)  # by a test of its own, because it needs a pod with the annotation
    assert {name for name in classes if name[0] != "_"} <= tested
