"""Which containers get an environment without GPUs, and which values users may not set."""

from copy import deepcopy
from typing import Any

import pytest

from bowline.framework.admission import AdmissionChain, Verdict
from bowline.framework.config import PluginEntry, Settings
from bowline.framework.interface.plugin import AdmissionInfo
from bowline.framework.registry import Registry
from bowline.plugins.catalog import BUILTINS
from bowline.plugins.device_access import DeviceAccess, DeviceAccessConfig
from bowline.testing.builders import pod

NAME = "NVIDIA_VISIBLE_DEVICES"
VOID = {"name": NAME, "value": "void"}
FROM_MAP = {"name": NAME, "valueFrom": {"configMapKeyRef": {"name": "mine", "key": NAME}}}
OTHER = {"name": "A", "value": "b"}


def env(*entries: dict[str, Any], **container: Any) -> dict[str, Any]:
    return {"name": "main", "image": "x", "env": list(entries), **container}


def limits(**quantities: str) -> dict[str, Any]:
    return {"limits": {key.replace("__", "/").replace("_", "-"): value for key, value in quantities.items()}}


GPU = {"limits": {"nvidia.com/gpu": "1"}}


def plugin(*gpu_resources: str) -> DeviceAccess:
    return DeviceAccess(DeviceAccessConfig.model_validate({"gpuResources": gpu_resources}), Settings())


def with_container(container: dict[str, Any], field: str) -> dict[str, Any]:
    raw = pod(containers=[env(VOID)])
    raw["spec"][field] = [container]
    return raw


def after(container: dict[str, Any], gpu_resources: tuple[str, ...] = (), field: str = "containers") -> Any:
    """The container's environment after the mutating hook; None if there is none."""
    raw = with_container(container, field)
    chain = AdmissionChain([plugin(*gpu_resources)], Settings())
    chain.admit_pod(raw, AdmissionInfo())
    again = deepcopy(raw)
    assert chain.admit_pod(raw, AdmissionInfo()).patch == (), "a second time changes nothing"
    assert raw == again
    return raw["spec"][field][0].get("env")


@pytest.mark.parametrize("field", ["containers", "initContainers"])
@pytest.mark.parametrize(
    ("container", "environment"),
    [
        pytest.param({"name": "main"}, [VOID], id="a container without a GPU sees none"),
        pytest.param(env(OTHER), [OTHER, VOID], id="other variables are unchanged"),
        pytest.param(env(VOID), [VOID], id="one with void is unchanged"),
        pytest.param(env({"name": NAME, "value": "none"}), [{"name": NAME, "value": "none"}],
            id="the value none is accepted"),
        pytest.param(env({"name": NAME, "value": ""}), [VOID], id="an empty value is not left to the image"),
        pytest.param(env({"name": NAME, "valueFrom": None}, OTHER), [OTHER, VOID],
            id="an entry with a null valueFrom"),
        pytest.param(env(VOID, {"name": NAME, "value": ""}), [VOID],
            id="an empty one that would override void is dropped"),
        pytest.param(env(resources={"limits": {"nvidia.com/gpu": "0"}}), [VOID], id="no GPU asked for is no GPU"),
        pytest.param({"name": "main", "resources": GPU}, None, id="a container with a GPU keeps what it has"),
        pytest.param({"name": "main", "resources": {"limits": {"nvidia.com/mig-1g.10gb": 1}}}, None,
            id="so does one with MIG"),
        pytest.param({"name": "main", "resources": {"limits": {"nvidia.com/gpu.shared": 1}}}, None,
            id="and one with a replica of a GPU, by the device plugin's name for time-slicing and MPS"),
        pytest.param({"name": "main", "resources": {"claims": [{"name": "gpu"}]}}, None,
            id="one with a DRA claim is never voided"),
        pytest.param({"name": "main", "resources": {"limits": {"deviceclass.resource.kubernetes.io/gpu": "1"}}}, None,
            id="a device class as a resource"),
    ],
)  # fmt: skip
def test_containers_without_gpus_get_no_visible_devices(
    container: dict[str, Any], environment: Any, field: str
) -> None:
    assert (after(container, field=field) or None) == environment


def test_a_configured_resource_counts_as_a_gpu() -> None:
    container = {"name": "main", "resources": {"limits": {"gpu.example.com/gpu": "1"}}}
    assert after(deepcopy(container)) == [VOID]
    assert after(deepcopy(container), ("gpu.example.com/gpu",)) is None


def violations(container: dict[str, Any], *, final: bool = False, field: str = "containers") -> list[tuple[str, str]]:
    raw = with_container(container, field)
    return [(f.rule.id, f.path) for f in plugin().validate_pod(raw, None, AdmissionInfo(is_validating_webhook=final))]


VALUE, REFERENCE = "device_access/value", "device_access/value-from"


@pytest.mark.parametrize("field", ["containers", "initContainers"])
@pytest.mark.parametrize(
    ("container", "rules"),
    [
        pytest.param(env(VOID), [], id="void"),
        pytest.param(env({"name": NAME, "value": "all"}), [(VALUE, "env[0].value")], id="all"),
        pytest.param(env(FROM_MAP), [(REFERENCE, "env[0].valueFrom")], id="a reference"),
        pytest.param(env(VOID, {"name": NAME, "value": "all"}, VOID), [(VALUE, "env[1].value")],
            id="hidden between two voids"),
        pytest.param(env({"name": NAME, "value": "all"}, resources=GPU), [(VALUE, "env[0].value")],
            id="beside a GPU it would win over the device plugin"),
        pytest.param(env({"name": NAME, "value": ""}, resources=GPU), [(VALUE, "env[0].value")],
            id="beside a GPU, nothing"),
        pytest.param(env(resources=GPU, envFrom=[{"prefix": "X_", "secretRef": {"name": "a"}}]), [],
            id="a prefix with which the name cannot begin"),
        pytest.param(env(resources=GPU, envFrom=[{"prefix": "NVIDIA_", "secretRef": {"name": "a"}}]),
            [("device_access/env-from", "envFrom[0]")], id="beside a GPU, what envFrom may set is warned about"),
        pytest.param(env(VOID, resources=GPU, envFrom=[{"configMapRef": {"name": "a"}}]), [],
            id="unless an entry overrides it"),
    ],
)  # fmt: skip
def test_reserved_variables_set_by_hand_are_rejected(
    container: dict[str, Any], rules: list[tuple[str, str]], field: str
) -> None:
    assert violations(container, field=field) == [(rule, f"spec.{field}[0].{path}") for rule, path in rules]


@pytest.mark.parametrize(
    ("container", "missing"),
    [
        pytest.param({"name": "main"}, True, id="no environment at all"),
        pytest.param(env(VOID, {"name": NAME, "value": ""}), True, id="an empty value that wins"),
        pytest.param(env(VOID), False, id="void"),
        pytest.param(env(resources=GPU), False, id="a GPU"),
    ],
)
def test_a_pod_without_mutation_is_denied_by_the_last_hook(container: dict[str, Any], missing: bool) -> None:
    assert ("device_access/unprepared", "spec.containers[0].env") not in violations(container)
    assert (("device_access/unprepared", "spec.containers[0].env") in violations(container, final=True)) is missing


def test_a_stored_pod_is_not_validated_again() -> None:
    raw = pod(containers=[env({"name": NAME, "value": "all"})])
    assert not list(plugin().validate_pod(raw, raw, AdmissionInfo("UPDATE", is_validating_webhook=True)))


# --- the container of a share ---


def shared(**container: Any) -> dict[str, Any]:
    raw = pod(containers=[{"name": "main", "image": "x", **container}, {"name": "side", "image": "x"}])
    raw["metadata"]["annotations"] = {"gpu-fraction": "0.5"}
    return raw


def whole_chain() -> AdmissionChain:
    settings = Settings(plugins=(PluginEntry(name="device_access"),))
    return AdmissionChain(Registry(BUILTINS).build(settings), settings)


def verdict(raw: dict[str, Any]) -> Verdict:
    chain, info = whole_chain(), AdmissionInfo(namespace="team", request_uid="s")
    first = chain.admit_pod(raw, info)
    return (
        first
        if not first.allowed
        else chain.validate_pod(raw, None, AdmissionInfo(namespace="team", is_validating_webhook=True))
    )


def test_only_the_container_of_a_share_gets_devices() -> None:
    raw = shared(env=[{"name": NAME, "value": "all"}])
    assert verdict(raw).allowed
    target, side = raw["spec"]["containers"]
    (variable,) = [entry for entry in target["env"] if entry["name"] == NAME]
    prefix = raw["metadata"]["annotations"]["runai/shared-gpu-configmap"]
    assert variable["valueFrom"]["configMapKeyRef"]["name"] == f"{prefix}-0"
    assert side["env"] == [VOID]


def test_another_container_may_not_use_a_shares_reference() -> None:
    raw = shared()
    verdict(raw)
    raw["spec"]["containers"][1]["env"] = deepcopy(raw["spec"]["containers"][0]["env"])
    assert [f.rule.id for f in verdict(raw).errors] == [REFERENCE]


@pytest.mark.parametrize(
    ("prefix", "is_allowed"),
    [
        pytest.param("", True, id="none, so that one is generated"),
        pytest.param("job-bcdfghj-shared-gpu", True, id="a generated one"),
        pytest.param("mine", False, id="the author's own"),
        pytest.param("-bcdfghj-shared-gpu", False, id="a generated one without its base"),
    ],
)
def test_the_author_of_a_share_does_not_choose_its_configmaps(prefix: str, is_allowed: bool) -> None:
    raw = shared()
    if prefix:
        raw["metadata"]["annotations"]["runai/shared-gpu-configmap"] = prefix
    errors = [(f.rule.id, f.path) for f in verdict(raw).errors if f.rule.id == "device_access/configmap-prefix"]
    rule = ("device_access/configmap-prefix", "metadata.annotations[runai/shared-gpu-configmap]")
    assert errors == ([] if is_allowed else [rule])


# --- ephemeral containers ---


def pod_with_ephemeral(*containers: dict[str, Any]) -> dict[str, Any]:
    return pod(ephemeralContainers=list(containers))


def test_a_new_ephemeral_container_gets_no_gpu_and_running_ones_are_unchanged() -> None:
    old = pod_with_ephemeral({"name": "first", "image": "x", "env": [{"name": NAME, "value": "all"}]})
    new = pod_with_ephemeral(old["spec"]["ephemeralContainers"][0], {"name": "second", "image": "x"})
    chain = AdmissionChain([plugin()], Settings())
    verdict = chain.admit_ephemeral_containers(new, old, AdmissionInfo("UPDATE"))
    assert verdict.allowed
    assert verdict.patch == ({"op": "add", "path": "/spec/ephemeralContainers/1/env", "value": [VOID]},)


@pytest.mark.parametrize(
    ("container", "rules"),
    [
        pytest.param(env({"name": NAME, "value": "all"}), [VALUE], id="all"),
        pytest.param(env(), ["device_access/unprepared"], id="nothing, without mutation"),
        pytest.param(env(VOID), [], id="void"),
    ],
)
def test_an_ephemeral_container_gets_no_gpu(container: dict[str, Any], rules: list[str]) -> None:
    chain = AdmissionChain([plugin()], Settings())
    info = AdmissionInfo("UPDATE", is_validating_webhook=True)
    assert [
        f.rule.id for f in chain.validate_ephemeral_containers(pod_with_ephemeral(container), pod(), info).errors
    ] == rules


def test_other_schedulers_pods_are_not_changed() -> None:
    raw = pod(schedulerName="default-scheduler", ephemeralContainers=[env({"name": NAME, "value": "all"})])
    chain = AdmissionChain([plugin()], Settings())
    assert chain.admit_ephemeral_containers(raw, pod(), AdmissionInfo("UPDATE")) == Verdict()
