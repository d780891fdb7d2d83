"""The limit in numbers, and how it gets into the container's environment."""

from decimal import Decimal
from typing import Any

import pytest

from shared.framework.admission import AdmissionChain
from shared.framework.config import ConfigurationError, PluginEntry, Settings
from shared.framework.plugin import AdmissionInfo, PluginConfig
from shared.framework.registry import Builtin, Registry
from shared.plugins.gpu_sharing import GpuSharing
from shared.plugins.hami_core import HamiCore
from shared.plugins.hami_core.rules import memory_limit

Json = dict[str, Any]


@pytest.mark.parametrize(
    ("labels", "portion", "limit", "fault"),
    [
        pytest.param({"nvidia.com/gpu.memory": "15360"}, "0.27", "4147m", "", id="cut to whole MiB"),
        pytest.param({"nvidia.com/gpu.memory": "81920"}, "0.50", "40960m", "", id="half"),
        pytest.param({"nvidia.com/gpu.memory": "100"}, "0.29", "29m", "", id="exact where floating point is not"),
        pytest.param({}, "0.50", "", "have GPU feature discovery label it", id="no label"),
        pytest.param({"nvidia.com/gpu.memory": "80Gi"}, "0.50", "", '"80Gi" must be a whole', id="a unit"),
        pytest.param({"nvidia.com/gpu.memory": "0"}, "0.50", "", "must be a whole", id="none at all"),
        pytest.param({"nvidia.com/gpu.memory": "81920"}, "0.00", "", "is nothing", id="a portion of nothing"),
    ],
)
def test_memory_limit(labels: dict[str, str], portion: str, limit: str, fault: str) -> None:
    found, said = memory_limit({"metadata": {"name": "n", "labels": labels}}, Decimal(portion))
    assert found == limit
    assert bool(said) is bool(fault)
    assert fault in said


ENTRIES = (PluginEntry(name="hami_core"),)
BUILTINS = (Builtin(GpuSharing), Builtin(HamiCore, enabled=False))


def chain() -> AdmissionChain:
    settings = Settings(plugins=ENTRIES)
    return AdmissionChain(Registry(BUILTINS).build(settings), settings)


def pod(env: list[Json] | None = None, annotations: Json | None = None) -> Json:
    return {
        "metadata": {"name": "p", "annotations": {"gpu-fraction": "0.5"} if annotations is None else annotations},
        "spec": {"schedulerName": "bowline", "containers": [{"name": "main", "env": env or []}, {"name": "other"}]},
    }


@pytest.mark.parametrize(
    "env",
    [
        pytest.param([], id="no environment"),
        pytest.param([{"name": "CUDA_DEVICE_MEMORY_LIMIT", "value": "80000m"}], id="a limit of the user's own"),
    ],
)
def test_the_shares_container_takes_its_limit_from_the_configmap(env: list[Json]) -> None:
    raw = pod(env)
    assert chain().admit_pod(raw, AdmissionInfo(seed="s")).allowed
    name = raw["metadata"]["annotations"]["runai/shared-gpu-configmap"] + "-0"
    limits = [one for one in raw["spec"]["containers"][0]["env"] if one["name"] == "CUDA_DEVICE_MEMORY_LIMIT"]
    reference = {"name": name, "key": "CUDA_DEVICE_MEMORY_LIMIT", "optional": True}
    assert limits == [{"name": "CUDA_DEVICE_MEMORY_LIMIT", "valueFrom": {"configMapKeyRef": reference}}]
    assert "env" not in raw["spec"]["containers"][1]
    # The two plugins' parts stand side by side: a second review finds both.
    assert chain().admit_pod(raw, AdmissionInfo(seed="t")).patch == ()
    assert chain().validate_pod(raw, None, AdmissionInfo(final=True)).allowed
    limits[0]["valueFrom"]["configMapKeyRef"]["name"] = "other-0"
    (fault,) = chain().validate_pod(raw, None, AdmissionInfo(final=True)).errors
    assert (fault.rule, fault.path) == ("hami_core/unprepared", "spec.containers[0].env")


def test_a_pod_without_a_share_is_left_alone() -> None:
    raw = pod(annotations={})
    assert chain().admit_pod(raw, AdmissionInfo()).patch == ()
    assert chain().validate_pod(raw, None, AdmissionInfo(final=True)).allowed


def test_it_is_off_unless_asked_for_and_needs_gpu_sharing() -> None:
    assert [one.name for one in Registry(BUILTINS).build(Settings())] == ["gpu_sharing"]
    assert [one.name for one in Registry(BUILTINS).build(Settings(plugins=ENTRIES))] == ["gpu_sharing", "hami_core"]
    alone = Settings(plugins=(*ENTRIES, PluginEntry(name="gpu_sharing", enabled=False)))
    with pytest.raises(ConfigurationError, match="requires plugin gpu_sharing"):
        Registry(BUILTINS).build(alone)


def test_settings_take_no_arguments() -> None:
    assert HamiCore.config_model is PluginConfig
