"""Conformance: a correct plugin and the built-in ones pass, and each wrong one is named by its check."""

from typing import Any
from unittest import SkipTest

import pytest

from bowline.api import names
from bowline.framework.interface.plugin import Plugin
from bowline.framework.registry import Builtin
from bowline.localcluster.cluster import Cluster
from bowline.plugins.catalog import BUILTINS
from bowline.plugins.dynamic_resources.plugin import DynamicResources
from bowline.plugins.gpu_sharing.plugin import GpuSharing
from bowline.plugins.hami_core import HamiCore
from bowline.plugins.nv_fractions import NvFractions
from bowline.plugins.volume_binding import VolumeBinding
from bowline.resources import PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, RESOURCECLAIMS, STORAGECLASSES
from bowline.testing import builders, conformance, purity
from bowline.testing.lab import Lab
from tests.plugins.claims import claim_decisions
from tests.testing import wrong_plugins
from tests.testing.licence import SEATS, Conditional, Licence
from tests.testing.node_agent import reported_devices
from tests.testing.right_plugins import SERVER, Annotating, Asking, Outside, ShortNames, answer, outage
from tests.waiting import LIMIT_S

TestLicence = conformance.suite(Licence, limit_s=LIMIT_S)

# One for each finding: plugin, check, words of the message.
WRONG = [
    pytest.param("wrong_plugins:Raising", "admission_results", "mutate_pod raises KeyError", id="raises"),
    pytest.param("wrong_plugins:RaisingInBind", "binds", "pre_bind: KeyError", id="raises in pre_bind"),
    pytest.param("wrong_plugins:Blocking", "binds", "time.sleep", id="blocks by a sleep"),
    pytest.param("wrong_plugins:Computing", "binds", "event loop for more than 1 s: pre_bind", id="blocks"),
    pytest.param("wrong_plugins:Hanging", "binds", "has not ended after 1.5 s", id="hangs"),
    pytest.param("wrong_plugins:CatchingAll", "cancellation", "ignores its cancellation", id="catches everything"),
    pytest.param("wrong_plugins:Leaking", "binds", "leaves the task sleep behind", id="leaks a task"),
    pytest.param("wrong_plugins:Appending", "admission_is_pure", "its own result", id="a mutation is not idempotent"),
    pytest.param("wrong_plugins:WithoutSideEffects", "declared_writes", "has_side_effects is False", id="leaks"),
    pytest.param("wrong_dependency:Dependent", "import", "bowline_no_such_dependency", id="a missing dependency"),
    pytest.param("wrong_exits:Exits", "import", "SystemExit: 3", id="exits at import"),
    pytest.param("wrong_plugins:Clashing", "class", "built-in plugin", id="a name clash"),
    pytest.param("wrong_plugins:Counting", "interrupted_writes", "also has configmaps", id="takes two after a crash"),
    pytest.param("wrong_plugins:Optimistic", "rejected_writes", "was rejected with", id="believes in its writes"),
    pytest.param("wrong_plugins:Unread", "rejected_writes", "stored without metadata.labels", id="reads no reply"),
    pytest.param("wrong_plugins:Unconditional", "overtaking_leader", "has another content in configmaps",
        id="no precondition"),
    # With a pod that concerns them, these passed.
    pytest.param("wrong_plugins:Remembering", "forgets", "self._bound keeps a request", id="never forgets"),
    pytest.param("wrong_plugins:Connecting", "binds", "blocking socket.connect", id="synchronous HTTP"),
    pytest.param("wrong_plugins:OfAnotherName", "declared_writes", "name_prefix='licence-': ", id="another name"),
    pytest.param("wrong_plugins:Anonymous", "declared_writes", "no other annotation of a pod",
        id="an undeclared annotation"),
    pytest.param("wrong_plugins:ReadingInSetup", "binds", "setup raised Forbidden", id="reads in setup"),
    pytest.param("wrong_plugins:Dying", "binds", "dying/sweep raises", id="a queue raises"),
    pytest.param("wrong_plugins:ChangingRaw", "admission_is_pure", "changes `raw` itself", id="changes raw"),
    pytest.param("wrong_plugins:IgnoringOld", "admission_is_pure", "changes nothing", id="ignores old"),
    pytest.param("wrong_plugins:Denying", "binds", "webhook denies the Pod", id="denies its own sample"),
    pytest.param("wrong_plugins:ChangingThePod", "declared_writes", "changes ctx.pod", id="changes the pod"),
    pytest.param("wrong_plugins:Lying", "binds", "the pod is on no node", id="a bind that lies"),
    pytest.param("wrong_plugins:Sweeping", "release", "licence-pod-beside, which another pod", id="releases all"),
    pytest.param("wrong_plugins:ReleasingThePod", "release", "licence-pod for ever", id="needs the pod in release"),
    # Named before as well, with a pod that concerns them.
    pytest.param("wrong_plugins:Networking", "admission_is_pure", "socket", id="validation over the network"),
    pytest.param("wrong_plugins:RememberingWhatToUndo", "rollback", "leaves configmaps", id="a rollback from memory"),
    pytest.param("wrong_plugins:OutageIsFatal", "interrupted_writes", "FATAL", id="an outage is fatal"),
    # Beside other pods, a second pod, a cancellation, an outage; what is declared and unused; exceptions of any kind.
    pytest.param("wrong_plugins:AppliesByIndexing", "queries", "raises KeyError: 'annotations'", id="indexes"),
    pytest.param("wrong_plugins:IndexingThePod", "concerned", "pre_bind: KeyError", id="indexes the pod"),
    pytest.param("wrong_plugins:Sharing", "two_pods", "the first pod's metadata", id="a value of all pods"),
    pytest.param("wrong_plugins:CheckingThenActing", "two_pods", "also has outside: seat", id="checks, then acts"),
    pytest.param("wrong_plugins:Shielding", "cancellation", "leaves outside: seat of POD", id="a late effect"),
    pytest.param("wrong_plugins:Generating", "interrupted_writes", "also has outside: seat UUID", id="generates"),
    pytest.param("wrong_plugins:FailingInAnOutage", "outage", "ends RETRY", id="fails in an outage"),
    pytest.param("wrong_plugins:ReleasingInAnOutage", "outage", "release returns OK", id="hides an outage"),
    pytest.param("wrong_plugins:Open", "binds", "leaves self._sockets open", id="never closes"),
    pytest.param("wrong_plugins:DenyingByString", "admission_results", "must return FieldErrors", id="a string"),
    pytest.param("wrong_plugins:ReadingTheClock", "admission_is_pure", "the clock is read", id="reads the clock"),
    pytest.param("wrong_plugins:Loose", "class", "accept unknown keys", id="accepts unknown keys"),
    pytest.param("wrong_plugins:EndingItsTask", "binds", "ends with SystemExit: 3", id="exits in its own task"),
    pytest.param("wrong_plugins:Overdeclaring", "unused_rights", "declares patch of configmaps", id="unused right"),
    pytest.param("wrong_plugins:Overdeclaring", "unused_rights", "licence.example.com/Seated on pods", id="unset"),
    # What a term and a process have beside the attempts; a pod that is gone.
    pytest.param("wrong_plugins:RaisingInAWatch", "binds", "a_watch/on_change raises", id="a watch raises"),
    pytest.param("wrong_plugins:Unwoken", "binds", "no event has ended the wait", id="excludes the end by its hint"),
    pytest.param("wrong_plugins:NotEnding", "binds", "not_ending/run: does not end", id="outlives the term"),
    pytest.param("wrong_plugins:NotSetUp", "binds", "a setup ignores its cancellation", id="never set up"),
    pytest.param("wrong_plugins:Unserved", "binds", "event source reports nothing", id="watches nothing"),
    pytest.param("wrong_plugins:ReleasingThePod", "rollback", "a pod that is gone", id="rollback needs the pod"),
    # A method that does not return, state outside of the object, what outlives a call or a term.
    pytest.param("wrong_plugins:Endless", "binds", "NotReturningError", id="never returns"),
    pytest.param("wrong_plugins:RememberingPods", "admission_is_pure", "different results", id="remembers pods"),
    pytest.param("wrong_plugins:OfAnotherRule", "admission_results", "none of its `rules`", id="another's rule"),
    pytest.param("wrong_plugins:IndexingEphemeral", "admission_results", "validate_ephemeral", id="ephemeral"),
    pytest.param("wrong_plugins:AppliesByChance", "queries", "different answers", id="applies by chance"),
    pytest.param("wrong_plugins:AppliesChanging", "queries", "changes the pod", id="applies changes the pod"),
    pytest.param("wrong_plugins:InTheClass", "forgets", "InTheClass.seats keeps", id="state of the class"),
    pytest.param("wrong_plugins:InADefault", "forgets", "InADefault._note keeps", id="a mutable default"),
    pytest.param("wrong_plugins:RaisingInForget", "forgets", "forget: KeyError", id="raises in forget"),
    pytest.param("wrong_plugins:Threading", "binds", "leaves the thread", id="leaves a thread"),
    pytest.param("wrong_plugins:InOthersName", "declared_writes", "in ctx.shared", id="shares as another"),
    pytest.param("wrong_plugins:BlockingInRelease", "release", "time.sleep", id="blocks in release"),
    pytest.param("wrong_plugins:OutlivingItsTerm", "binds", "when its term has ended", id="outlives its term"),
    pytest.param("wrong_plugins:AppliesByText", "queries", "must return True or False", id="applies is no bool"),
    pytest.param("wrong_plugins:ConnectingAtOnce", "class", "constructor does I/O", id="connects when it is created"),
    pytest.param("wrong_plugins:MutatingInValidate", "admission_is_pure", "that it validates", id="validate mutates"),
    pytest.param("wrong_plugins:ReturningAPatch", "admission_results", "must return None", id="a patch is returned"),
    pytest.param("wrong_plugins:BindingInAnOutage", "outage", "without its effect", id="binds in an outage"),
    # Nothing of these was checked, and it said: no findings.
    pytest.param("wrong_plugins:Unconcerned", "concerned", "not checked: applies is False", id="no pod concerns it"),
    pytest.param("wrong_plugins:Skipping", "concerned", "not checked: every method returns SKIP", id="skips"),
    pytest.param("wrong_plugins:Waiting", "binds", "still waits after 1.5 s: no seat is free", id="waits for nobody"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "check", "words"), WRONG)
def test_a_wrong_plugin_is_named(
    bowline_cluster: Cluster, monkeypatch: pytest.MonkeyPatch, target: str, check: str, words: str
) -> None:
    if words == "NotReturningError":  # it computes until it is interrupted: ten seconds of CPU by default
        monkeypatch.setattr(purity, "_LOOKS", 4)
    # Only the one that hangs needs all of the limit.
    limit_s = 1.5 if "1.5 s" in words else LIMIT_S
    SERVER.clear()
    checks = () if check == "unused_rights" else [check]  # it looks at what all others have done
    outside: Any = {"effects": lambda: list(SERVER), "outage": outage}
    run = conformance.run(f"tests.testing.{target}", bowline_cluster, checks=checks, limit_s=limit_s, **outside)
    findings = list(run)
    assert [finding for finding in findings if finding.check == check and words in finding.message], findings


def test_a_pod_that_had_no_annotation_is_tried() -> None:
    pod = builders.pod()
    pod["metadata"]["annotations"] = {SEATS: "1"}
    run = conformance.run("tests.testing.wrong_plugins:IndexingOld", None, checks=["admission_results"], pods=[pod])
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


@pytest.mark.parametrize(("plugin", "others", "annotations", "checks"), SHARING)
def test_a_plugin_of_shares_conforms_with_a_share(
    bowline_cluster: Cluster,
    plugin: type[Plugin],
    others: tuple[type[Plugin], ...],
    annotations: dict[str, str],
    checks: tuple[str, ...],
) -> None:
    bowline_cluster.make_runtime_class()
    pod = builders.pod(runtimeClassName="nvidia")
    pod["metadata"]["annotations"] = annotations
    request = {
        "receivedResourceType": "Fraction",
        "receivedGPU": {"count": 1, "portion": "0.50"},
        "selectedGPUGroups": ["{namespace}"],
    }
    with reported_devices(bowline_cluster):
        run = conformance.run(
            plugin, bowline_cluster, checks=checks, pods=[pod], request=request, others=others, limit_s=LIMIT_S
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
    tested = {str(parameters.values[0]).partition(":")[2] for parameters in WRONG}
    tested.add(wrong_plugins.IndexingOld.__name__)  # by a test of its own, because it needs a pod with the annotation
    assert {name for name in classes if name[0] != "_"} <= tested
