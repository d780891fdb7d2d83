"""Preparing a pod for its share, and detecting one that was not prepared."""

import copy
import re
from typing import Any

import jsonpatch
import pytest

from bowline.api import names
from bowline.api.bindrequest import decode_bind_request
from bowline.api.gpu_share import GENERATED_LETTERS, direct_env_map
from bowline.framework.admission import AdmissionChain
from bowline.framework.config import GpuSharingSettings as Sharing
from bowline.framework.config import Settings
from bowline.framework.interface.mutable import MutablePod
from bowline.framework.interface.plugin import AdmissionInfo
from bowline.framework.templates import Template
from bowline.plugins.gpu_sharing.admission import prepare, share_errors
from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from bowline.plugins.gpu_sharing.guards import guard_errors
from bowline.plugins.gpu_sharing.plugin import GpuSharing
from bowline.plugins.gpu_sharing.tests.pods import HALF, Json, sharing_pod
from bowline.testing.builders import bind_request, stored

SHARE: dict[str, Any] = {
    "receivedResourceType": "Fraction",
    "receivedGPU": {"count": 1, "portion": "0.50"},
    "selectedGPUGroups": ["g"],
}
PREFIX = {**HALF, names.SHARED_GPU_CONFIGMAP: "p"}
LABEL = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def prepare_pod(raw: Json, seed: str = "seed") -> Json:
    pod = MutablePod(raw)
    prepare(pod, seed)
    return raw


def reference(key: str, name: str = "p-0") -> Json:
    return {"name": key, "valueFrom": {"configMapKeyRef": {"name": name, "key": key}}}


OURS = [reference("NVIDIA_VISIBLE_DEVICES"), reference("RUNAI_NUM_OF_GPUS"), reference("GPU_PORTION")]


def test_a_prepared_pod_has_the_form_that_drivers_and_schedulers_expect() -> None:
    pod = prepare_pod(sharing_pod(PREFIX))
    assert pod["spec"]["containers"] == [
        {"name": "main", "env": OURS, "envFrom": [{"configMapRef": {"name": "p-0-evar", "optional": False}}]}
    ]
    assert pod["spec"]["volumes"] == [{"name": "p-0-vol", "configMap": {"name": "p-0", "defaultMode": 420}}]


@pytest.mark.parametrize(
    ("env", "becomes"),
    [
        pytest.param([{"name": "A"}, {"name": "B"}], [{"name": "A"}, {"name": "B"}, *OURS],
            id="others remain, first"),
        pytest.param([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, {"name": "A"}], [{"name": "A"}, *OURS],
            id="one of the same name is removed"),
        pytest.param([*OURS, {"name": "A"}], [*OURS, {"name": "A"}], id="ours exist, at any index"),
        pytest.param([*OURS, {"name": "GPU_PORTION", "value": "1"}], OURS,
            id="a later one of the same name has priority, and is removed"),
        pytest.param([reference("GPU_PORTION", "other-0")], OURS, id="a reference to another map is removed"),
    ],
)  # fmt: skip
def test_environment(env: list[Json], becomes: list[Json]) -> None:
    pod = prepare_pod(sharing_pod(PREFIX, containers=[{"name": "main", "env": env}]))
    assert pod["spec"]["containers"][0]["env"] == becomes


@pytest.mark.parametrize(
    ("env", "paths"),
    [
        pytest.param([{"name": "A"}, {"name": "GPU_PORTION", "value": "1"}, {"name": "RUNAI_NUM_OF_GPUS",
            "value": "2"}], ["env[1].value", "env[2].value"], id="what the share says of itself"),
        pytest.param([{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            ["env[0].valueFrom"], id="a reference"),
        pytest.param([*OURS, {"name": "GPU_PORTION", "value": "1"}], ["env[3].value"], id="beside ours"),
        pytest.param([reference("NVIDIA_VISIBLE_DEVICES", "p-1")], [], id="an entry of an earlier review"),
        pytest.param([{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}] * 1000, ["env[0].value", "env[1].value",
            "env[2].value"], id="thousands"),
    ],
)  # fmt: skip
def test_a_variable_that_is_replaced_is_a_warning(env: list[Json], paths: list[str]) -> None:
    settings = Settings()
    chain = AdmissionChain([GpuSharing(GpuSharingConfig(), settings)], settings)
    raw = sharing_pod(PREFIX, containers=[{"name": "main", "env": list(env)}])
    verdict = chain.admit_pod(raw, AdmissionInfo())
    texts = [error.path.removeprefix("spec.containers[0].") for error in verdict.warnings]
    assert texts == paths
    assert {error.rule.id for error in verdict.warnings} == ({"gpu_sharing/environment"} if paths else set())
    assert chain.admit_pod(raw, AdmissionInfo()).warnings == (), "a second review replaces nothing"


@pytest.mark.parametrize(
    ("annotations", "spec", "position"),
    [
        pytest.param(HALF, {}, "containers[0] -0", id="the first container"),
        pytest.param({"gpu-fraction": ""}, {}, "containers[0] -0", id="an empty share is one, and refused elsewhere"),
        pytest.param({**HALF, "gpu-fraction-container-name": "b"}, {"containers": [{"name": "a"}, {"name": "b"}]},
            "containers[1] -1", id="the named container"),
        pytest.param({**HALF, "gpu-fraction-container-name": "b"}, {"initContainers": [{"name": "b"}],
            "containers": [{"name": "b"}]}, "initContainers[0] -i0", id="of two of that name the init container"),
        pytest.param(HALF, {"initContainers": [{"name": "i"}]}, "containers[0] -0", id="else no init container"),
        pytest.param({**HALF, "gpu-fraction-container-name": "x"}, {}, "", id="there is none of that name"),
        pytest.param(HALF, {"containers": []}, "", id="there are no containers"),
        pytest.param({}, {}, "", id="no share"),
    ],
)  # fmt: skip
def test_only_the_shares_container_is_changed(annotations: Json, spec: Json, position: str) -> None:
    raw = sharing_pod(annotations, **spec)
    before = copy.deepcopy(raw)
    prepare_pod(raw)
    containers = [
        f"{field}[{index}] -{container['envFrom'][0]['configMapRef']['name'].split('-shared-gpu-')[1][:-5]}"
        for field in ("initContainers", "containers")
        for index, container in enumerate(raw["spec"].get(field, []))
        if "envFrom" in container
    ]
    assert containers == ([position] if position else [])
    if not position:
        assert raw == before


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_a_container_inserted_before_the_shares_own_updates_its_names(field: str) -> None:
    """1. The webhook prepares the pod. 2. Another one inserts its proxy first. 3. The webhook is called again.

    A ConfigMap of the former index would never be created, and the kubelet would wait for it indefinitely.
    """
    named = {**PREFIX, names.GPU_FRACTION_CONTAINER: "trains"}
    alone: Json = {"name": "trains", "envFrom": [{"configMapRef": {"name": "mine"}}]}
    mine: list[Json] = [
        {"configMap": {"name": "p-9"}, "name": "p-9-vol"},
        {"name": "mine", "configMap": {"name": "p-x"}},
    ]

    def pod_of(*containers: Json) -> Json:
        spec: Json = {field: list(containers), "volumes": mine}
        return sharing_pod(named, **copy.deepcopy(spec))

    between = prepare_pod(pod_of(alone))
    between["spec"][field].insert(0, {"name": "proxy"})
    review = copy.deepcopy(between)
    pod = MutablePod(review)
    prepare(pod, "other")
    assert review == prepare_pod(pod_of({"name": "proxy"}, alone))
    assert jsonpatch.apply_patch(between, pod.operations) == review


DEFAULT = {**HALF, names.DEFAULT_CONTAINER: "main"}


@pytest.mark.parametrize(
    ("annotations", "owner"),
    [
        pytest.param(DEFAULT, "main", id="the default one: Argo puts its own before it, a mesh its proxy"),
        pytest.param({**HALF, names.DEFAULT_CONTAINER: "absent"}, "wait", id="the first, if the pod has no such one"),
        pytest.param({**DEFAULT, names.GPU_FRACTION_CONTAINER: "wait"}, "wait", id="the one that is named for it"),
        pytest.param({**DEFAULT, names.SHARED_GPU_CONFIGMAP: "p"}, "wait", id="as another binder has prepared it"),
    ],
)
def test_the_share_is_of_the_default_container(annotations: Json, owner: str) -> None:
    pod = prepare_pod(sharing_pod(annotations, containers=[{"name": "wait"}, {"name": "main"}]))
    assert [container["name"] for container in pod["spec"]["containers"] if "env" in container] == [owner]
    assert pod["metadata"]["annotations"][names.GPU_FRACTION_CONTAINER] == owner
    assert not list(share_errors(pod, is_final=True))


def test_thousands_of_former_entries_are_removed_in_one_operation() -> None:
    prefix = {**HALF, names.SHARED_GPU_CONFIGMAP: "p"}
    raw = sharing_pod(prefix)
    raw["spec"]["volumes"] = [
        {"name": f"p-{i}-vol", "configMap": {"name": f"p-{i}", "defaultMode": 420}} for i in range(1, 5000)
    ]
    pod = MutablePod(raw)
    prepare(pod, "seed")
    assert len(pod.operations) < 10
    assert [volume["name"] for volume in raw["spec"]["volumes"]] == ["p-0-vol"]


@pytest.mark.parametrize(
    ("metadata", "base"),
    [
        pytest.param({"name": "half"}, "half", id="the pod's name"),
        pytest.param({"name": "", "generateName": "web-"}, "web", id="what its name will begin with"),
        pytest.param({"name": "w-1", "ownerReferences": [{"name": "rs-7f"}]}, "rs-7f", id="its owner's name"),
        pytest.param({"name": "x" * 253}, "x" * 37, id="cut"),
        pytest.param({"name": "x" * 36 + ".y"}, "x" * 36, id="cut behind a dot"),
        pytest.param({"name": "p", "ownerReferences": [{"name": "System:Foo_Bar"}]}, "system-foo-bar",
            id="any owner"),
        pytest.param({"name": "p", "ownerReferences": [{"name": "..--.."}]}, "pod", id="an owner of no use"),
        pytest.param({"name": "", "generateName": ""}, "pod", id="no name at all"),
    ],
)  # fmt: skip
def test_names_are_valid_for_any_pod_name(metadata: Json, base: str) -> None:
    pod = prepare_pod(sharing_pod(metadata=metadata))
    prefix = pod["metadata"]["annotations"][names.SHARED_GPU_CONFIGMAP]
    prefix_base, letters, tail = prefix[: -len("-1234567-shared-gpu")], prefix[-18:-11], prefix[-11:]
    assert (prefix_base, tail) == (base, "-shared-gpu")
    assert len(letters) == 7
    assert set(letters) <= set(GENERATED_LETTERS)
    capabilities = f"{prefix}-0"
    assert SUBDOMAIN.fullmatch(direct_env_map(capabilities))
    assert len(direct_env_map(capabilities)) <= 63
    volume = pod["spec"]["volumes"][0]["name"]
    assert LABEL.fullmatch(volume)
    assert len(volume) <= 63
    assert not list(share_errors(pod, is_final=False))


def test_random_parts_differ_by_request_and_are_equal_within_one() -> None:
    def prefix(seed: str) -> str:
        return str(prepare_pod(sharing_pod(), seed)["metadata"]["annotations"][names.SHARED_GPU_CONFIGMAP])

    assert prefix("one") == prefix("one")
    assert len({prefix(str(seed)) for seed in range(100)}) == 100


@pytest.mark.parametrize(
    ("prefix", "rule"),
    [
        pytest.param("mine", "", id="a plain one"),
        pytest.param("Mine", "lower-case", id="capitals"),
        pytest.param("m" * 57, "", id="as long as can be"),
        pytest.param("m" * 58, "at most 57", id="too long for a volume"),
        pytest.param("m" * 300, "lower-case", id="too long for anything"),
    ],
)
def test_a_prefix_set_by_the_user(prefix: str, rule: str) -> None:
    errors = list(
        share_errors(prepare_pod(sharing_pod({**HALF, names.SHARED_GPU_CONFIGMAP: prefix})), is_final=False)
    )
    if not rule:
        assert errors == []
        return
    (fault,) = errors
    assert fault.path == "metadata.annotations[runai/shared-gpu-configmap]"
    assert fault.value == prefix
    assert rule in fault.message
    assert "remove the annotation" in fault.message


@pytest.mark.parametrize(
    ("annotations", "errors"),
    [
        pytest.param(PREFIX, ["gpu_sharing/configmap-prefix"], id="its pods would share the ConfigMaps"),
        pytest.param(HALF, [], id="each pod gets a name"),
        pytest.param({names.SHARED_GPU_CONFIGMAP: "p"}, [], id="no share"),
    ],
)
def test_a_template_names_no_configmaps(annotations: Json, errors: list[str]) -> None:
    settings = Settings()
    chain = AdmissionChain([GpuSharing(GpuSharingConfig(), settings)], settings)
    template = Template.at("spec.template", sharing_pod(annotations))
    verdict = chain.validate_template(template, AdmissionInfo(kind="Deployment", request_uid="a"))
    assert [error.rule.id for error in verdict.errors] == errors


@pytest.mark.parametrize(
    ("key", "is_guarded"),
    [
        pytest.param("devices.nri.io", True, id="for all containers"),
        pytest.param("devices.noderesource.dev", True, id="the present name"),
        pytest.param("devices.nri.io/container.main", True, id="for one"),
        pytest.param("vendor.cdi.k8s.io/pod", True, id="below a domain"),
        pytest.param("devices.nri.iota", False, id="another domain"),
        pytest.param("netdevices.nri.io", False, id="network devices"),
    ],
)
def test_a_key_that_names_devices_is_guarded(key: str, is_guarded: bool) -> None:
    assert bool(list(guard_errors({"annotations": {key: "x"}}))) is is_guarded


def broken(defect: str) -> Json:
    pod = prepare_pod(sharing_pod())
    container = pod["spec"]["containers"][0]
    match defect:
        case "annotation":
            del pod["metadata"]["annotations"][names.SHARED_GPU_CONFIGMAP]
        case "env":
            container["env"].pop()
        case "overridden":
            container["env"].append({"name": names.VISIBLE_DEVICES, "value": "all"})
        case "envFrom":
            del container["envFrom"]
        case "volume":
            del pod["spec"]["volumes"]
    return pod


@pytest.mark.parametrize(
    ("defect", "lacking"),
    [
        pytest.param("nothing", "", id="all is there"),
        pytest.param("annotation", "the annotation", id="no annotation"),
        pytest.param("env", "the environment", id="a variable is missing"),
        pytest.param("overridden", "the environment", id="a variable is overridden"),
        pytest.param("envFrom", "envFrom", id="no envFrom"),
        pytest.param("volume", "the volume", id="no volume"),
    ],
)
def test_a_pod_that_lacks_its_preparation(defect: str, lacking: str) -> None:
    errors = list(share_errors(broken(defect), is_final=True))
    assert [fault.rule.id for fault in errors] == (["gpu_sharing/unprepared"] if lacking else [])
    assert not lacking or lacking in errors[0].message


def plugin(**sharing: Any) -> tuple[AdmissionChain, GpuSharing]:
    settings = Settings(gpu_sharing=Sharing(**sharing))
    plugin = GpuSharing(GpuSharingConfig(), settings)
    return AdmissionChain([plugin], settings), plugin


def test_only_the_last_hook_asks_for_the_preparation() -> None:
    chain, _ = plugin()
    bare = sharing_pod()
    assert chain.validate_pod(bare, None, AdmissionInfo()).allowed
    (fault,) = chain.validate_pod(bare, None, AdmissionInfo(is_validating_webhook=True)).errors
    assert (fault.rule.id, fault.path) == ("gpu_sharing/unprepared", "spec.containers[0]")
    assert chain.validate_pod(
        bare, sharing_pod(), AdmissionInfo(operation="UPDATE", is_validating_webhook=True)
    ).allowed


def test_with_sharing_off_nothing_is_prepared_or_served_and_what_runs_is_watched() -> None:
    chain, off = plugin(enabled=False)
    assert chain.admit_pod(sharing_pod(), AdmissionInfo()).patch == ()
    assert chain.validate_pod(sharing_pod(), None, AdmissionInfo(is_validating_webhook=True)).allowed
    request = decode_bind_request(stored(bind_request(**SHARE)))
    assert off.allocations == ()
    assert off.has_side_effects(request, None), "a share that was prepared before is rolled back"


@pytest.mark.parametrize(("kind", "is_denied"), [("Pod", False), ("Deployment", True)])
@pytest.mark.parametrize(
    ("field", "key", "rule"),
    [
        ("annotations", f"{names.NRI_CONTAINER}main", "guarded-annotation"),
        ("annotations", names.LABELLED_FOR, "guarded-fact"),
        ("labels", names.LABEL_GPU_GROUP, "guarded-label"),
    ],
)
def test_what_a_running_pod_has_of_its_own_is_denied_in_templates_and_left_to_the_policy_in_pods(
    kind: str, is_denied: bool, field: str, key: str, rule: str
) -> None:
    """The policy knows the trusted users, groups and namespaces."""
    pod = sharing_pod()
    pod["metadata"].setdefault(field, {})[key] = "of-another-pod"
    errors = GpuSharing(GpuSharingConfig(), Settings()).validate_pod(pod, None, AdmissionInfo(kind=kind))
    assert [error.rule.id for error in errors] == [f"gpu_sharing/{rule}"] * is_denied
