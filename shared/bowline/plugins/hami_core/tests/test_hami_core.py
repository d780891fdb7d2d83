"""The limit in numbers, and its way into the container's environment."""

from decimal import Decimal
from typing import Any

import pytest

from bowline.api.gpu_share import memory_limit
from bowline.framework.admission import AdmissionChain
from bowline.framework.config import ConfigurationError, GpuSharingSettings, PluginEntry, Settings
from bowline.framework.interface.plugin import AdmissionInfo, PluginConfig
from bowline.framework.interface.status import Done, Fatal, Status
from bowline.framework.reason import Suggestion
from bowline.framework.registry import Builtin, Registry
from bowline.plugins.gpu_sharing.plugin import GpuSharing
from bowline.plugins.hami_core import HamiCore
from bowline.testing.builders import bind_request, stored
from bowline.testing.handles import context_for

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("labels", "portion", "limit", "fault"),
    [
        pytest.param({"nvidia.com/gpu.memory": "15360"}, "0.27", "4147m", "", id="cut to whole MiB"),
        pytest.param({"nvidia.com/gpu.memory": "100"}, "0.29", "29m", "", id="exact where floating point is not"),
        pytest.param({"nvidia.com/gpu.memory": "16106127360"}, "0.50", "7680m", "", id="a label in bytes"),
        pytest.param({}, "0.50", "", "have GPU feature discovery label it", id="no label"),
        pytest.param({"nvidia.com/gpu.memory": "80Gi"}, "0.50", "", '"80Gi" must be a whole', id="a unit"),
        pytest.param({"nvidia.com/gpu.memory": "81920"}, "0.00", "", "is nothing", id="a portion of nothing"),
    ],
)
def test_memory_limit(labels: dict[str, str], portion: str, limit: str, fault: str) -> None:
    actual, message = memory_limit(pod(), {"metadata": {"name": "n", "labels": labels}}, Decimal(portion), 0)
    assert actual == limit
    assert bool(message) is bool(fault)
    assert fault in message


@pytest.mark.parametrize(
    ("setting", "label", "limit"),
    [
        pytest.param({}, "2000", "488m", id="a GiB by default"),
        pytest.param({"reservedMemory": "0"}, "2000", "1000m", id="nothing"),
        pytest.param({"reservedMemory": "1G"}, "2000", "523m", id="a decimal amount, rounded down to 953 MiB"),
        pytest.param({"reservedMemory": "1048575"}, "2000", "1000m", id="less than a MiB is nothing"),
    ],
)
def test_the_memory_that_the_driver_keeps_is_not_shared(setting: Json, label: str, limit: str) -> None:
    reserved = GpuSharingSettings.model_validate(setting).reserved_mebibytes
    node = {"metadata": {"name": "n", "labels": {"nvidia.com/gpu.memory": label}}}
    assert memory_limit(pod(), node, Decimal("0.50"), reserved) == (limit, "")


@pytest.mark.parametrize(
    ("memory", "limit"),
    [
        pytest.param("4096", "4096m", id="the amount itself, not its portion of two decimals"),
        pytest.param("10", "10m", id="a portion that is written as 0.00"),
        pytest.param("0", "", id="nothing"),
        pytest.param("4Gi", "", id="a unit"),
    ],
)
def test_a_share_of_an_amount_of_memory_is_limited_to_that_amount(memory: str, limit: str) -> None:
    node = {"metadata": {"name": "n"}}
    actual, message = memory_limit(pod(annotations={"gpu-memory": memory}), node, Decimal("0.00"), 1024)
    assert actual == limit
    assert bool(message) is not bool(limit)


@pytest.mark.parametrize(
    ("fraction", "is_denied"),
    [
        pytest.param("0.5", False, id="half"),
        pytest.param("0.005", False, id="the smallest that is written as 0.01"),
        pytest.param("0.004", True, id="written as 0.00"),
        pytest.param("half", False, id="no number, which is another rule's"),
    ],
)
def test_a_fraction_without_a_valid_limit_is_denied(fraction: str, is_denied: bool) -> None:
    raw = pod(annotations={"gpu-fraction": fraction})
    errors = chain().validate_pod(raw, None, AdmissionInfo()).errors
    assert [fault.path for fault in errors] == (["metadata.annotations[gpu-fraction]"] if is_denied else [])
    assert {fault.rule.id for fault in errors} == ({"hami_core/portion"} if is_denied else set())
    # An existing pod can still be changed and deleted.
    assert chain().validate_pod(raw, raw, AdmissionInfo(operation="UPDATE")).allowed


ENTRIES = (PluginEntry(name="hami_core"),)
BUILTINS = (Builtin(GpuSharing), Builtin(HamiCore, is_enabled=False))


def chain() -> AdmissionChain:
    settings = Settings(plugins=ENTRIES)
    return AdmissionChain(Registry(BUILTINS).build(settings), settings)


def pod(env: list[Json] | None = None, annotations: Json | None = None) -> Json:
    return {
        "metadata": {"name": "p", "annotations": {"gpu-fraction": "0.5"} if annotations is None else annotations},
        "spec": {
            "schedulerName": "kai-scheduler",
            "containers": [{"name": "main", "env": env or []}, {"name": "other"}],
        },
    }


@pytest.mark.parametrize(
    "env",
    [
        pytest.param([], id="no environment"),
        pytest.param([{"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "80000m"}], id="a limit of the user's own"),
    ],
)
def test_the_shares_container_gets_its_limit_from_the_configmap(env: list[Json]) -> None:
    raw = pod(env)
    verdict = chain().admit_pod(raw, AdmissionInfo(request_uid="s"))
    assert verdict.allowed
    replaced = [("gpu_sharing/environment", "spec.containers[0].env[0].value", "80000m")] if env else []
    assert [(error.rule.id, error.path, error.value) for error in verdict.warnings] == replaced
    name = raw["metadata"]["annotations"]["runai/shared-gpu-configmap"] + "-0"
    limits = [entry for entry in raw["spec"]["containers"][0]["env"] if entry["name"] == "CUDA_DEVICE_MEMORY_LIMIT"]
    reference = {"name": name, "key": "CUDA_DEVICE_MEMORY_LIMIT", "optional": True}
    assert limits == [{"name": "CUDA_DEVICE_MEMORY_LIMIT", "valueFrom": {"configMapKeyRef": reference}}]
    assert [entry["name"] for entry in raw["spec"]["containers"][1]["env"]] == ["NVIDIA_VISIBLE_DEVICES"]
    # The two plugins' parts are side by side: a second review finds both.
    assert chain().admit_pod(raw, AdmissionInfo(request_uid="t")).patch == ()
    assert chain().validate_pod(raw, None, AdmissionInfo(is_validating_webhook=True)).allowed
    limits[0]["valueFrom"]["configMapKeyRef"]["name"] = "other-0"
    (fault,) = chain().validate_pod(raw, None, AdmissionInfo(is_validating_webhook=True)).errors
    assert (fault.rule.id, fault.path) == ("gpu_sharing/unprepared", "spec.containers[0]")


def test_the_plugin_requires_gpu_sharing() -> None:
    alone = Settings(plugins=(*ENTRIES, PluginEntry(name="gpu_sharing", enabled=False)))
    with pytest.raises(ConfigurationError) as caught:
        Registry(BUILTINS).build(alone)
    (error,) = caught.value.errors
    assert (error.rule.id, error.value) == ("config/plugin-requires", "hami_core")


@pytest.mark.parametrize(
    ("labels", "annotations", "kind"),
    [
        pytest.param({"nvidia.com/gpu.memory": "15360"}, None, Done, id="the label is there"),
        pytest.param({}, None, Fatal, id="no label: the share would take the whole device"),
        pytest.param({}, {"gpu-memory": "4096"}, Done, id="an amount needs no label"),
    ],
)
async def test_a_share_without_a_known_limit_is_not_bound(
    labels: Json, annotations: Json | None, kind: type[Status]
) -> None:
    request = bind_request("p", "n", "ns", "u", receivedGPU={"count": 1, "portion": "0.50"}, selectedGPUGroups=["g"])
    c = context_for(stored(request), pod(annotations=annotations), {"metadata": {"name": "n", "labels": labels}})
    status = await HamiCore(PluginConfig(), Settings()).pre_bind(c)
    assert type(status) is kind
    assert not isinstance(status, Fatal) or status.suggestion is Suggestion.RESCHEDULE_ELSEWHERE
