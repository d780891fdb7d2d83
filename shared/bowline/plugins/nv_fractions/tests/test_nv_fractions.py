"""The plugin in the admission chain beside those that share GPUs, and its binding methods."""

from dataclasses import replace
from typing import Any

import pytest

from bowline.api import names
from bowline.api.gpu_share import SHARED_DEVICES
from bowline.api.node_view import reduced_node
from bowline.framework.admission import AdmissionChain
from bowline.framework.config import GpuSharingSettings, PluginEntry, Settings
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.plugin import AdmissionInfo, PluginConfig
from bowline.framework.interface.status import Done, Fatal, Status
from bowline.framework.reason import Suggestion
from bowline.framework.registry import Registry
from bowline.plugins.catalog import BUILTINS
from bowline.plugins.nv_fractions import NvFractions
from bowline.testing.builders import bind_request, stored
from bowline.testing.handles import context_for

Json = dict[str, Any]
REQUEST = "nvidia.com/container.other.gpu-memory.request"
DEVICES = "nvidia.com/container.main.gpus.devices"


def chain(*, enabled: bool = True) -> AdmissionChain:
    entries = (
        PluginEntry(name="nv_fractions", enabled=enabled),
        PluginEntry(name="device_access"),
        PluginEntry(name="hami_core"),
    )
    settings = Settings(plugins=entries if enabled else entries[1:])
    return AdmissionChain(Registry(BUILTINS, discover=dict).build(settings), settings)


def pod(annotations: Json) -> Json:
    containers = [{"name": "main", "image": "i"}, {"name": "other", "image": "i"}]
    metadata = {"name": "p", "namespace": "ns", "annotations": dict(annotations)}
    return {"metadata": metadata, "spec": {"schedulerName": "example-scheduler", "containers": containers}}


def test_a_request_in_nvidias_form_is_a_share_for_every_plugin() -> None:
    raw = pod({REQUEST: "8Gi"})
    assert chain().admit_pod(raw, AdmissionInfo(request_uid="s")).allowed
    annotations = raw["metadata"]["annotations"]
    assert annotations[names.GPU_MEMORY] == "8192"
    assert annotations[names.GPU_FRACTION_CONTAINER] == "other"
    assert raw["spec"]["runtimeClassName"] == "nvidia"
    container = raw["spec"]["containers"][1]
    references = {entry["name"] for entry in container["env"] if "valueFrom" in entry}
    assert {names.VISIBLE_DEVICES, names.DEVICE_MEMORY_LIMIT} <= references
    # The other container is none of a share.
    assert raw["spec"]["containers"][0]["env"] == [{"name": names.VISIBLE_DEVICES, "value": "void"}]
    assert chain().admit_pod(raw, AdmissionInfo(request_uid="t")).patch == ()
    assert chain().validate_pod(raw, None, AdmissionInfo(is_validating_webhook=True)).allowed


@pytest.mark.parametrize("lost", [names.GPU_MEMORY, names.GPU_FRACTION_CONTAINER, REQUEST])
def test_what_a_webhook_that_runs_later_has_removed_of_a_share_is_seen(lost: str) -> None:
    raw = pod({"gpu-memory": "8192", names.GPU_FRACTION_CONTAINER: "other"} if lost == REQUEST else {REQUEST: "8Gi"})
    assert chain().admit_pod(raw, AdmissionInfo(request_uid="s")).allowed
    del raw["metadata"]["annotations"][lost]
    errors = chain().validate_pod(raw, None, AdmissionInfo(is_validating_webhook=True)).errors
    assert ("nv_fractions/unprepared", f"metadata.annotations[{lost}]") in [(e.rule.id, e.path) for e in errors]


def context(annotations: Json, labels: Json, **spec: Any) -> BindContext:
    fields = {"receivedResourceType": "Fraction", "receivedGPU": {"count": 1, "portion": "0.50"}, **spec}
    request = bind_request("p", "n", "ns", "u", **fields)
    node = {"metadata": {"name": "n", "labels": labels}}
    return context_for(stored(request), pod(annotations), node, shared={SHARED_DEVICES: "GPU-1"})


LABELS = {names.NODE_GPU_MEMORY: "2000"}


async def test_the_binding_has_the_devices_that_gpu_sharing_has_reserved() -> None:
    plugin, ctx = NvFractions(PluginConfig(), Settings()), context({"gpu-fraction": "0.5"}, LABELS)
    assert plugin.applies(ctx.pod or {}, ctx.request)
    assert isinstance(await plugin.pre_bind(ctx), Done)
    assert plugin.binding_annotations(ctx) == {
        DEVICES: "GPU-1",
        "nvidia.com/container.main.gpu-memory.request": "488Mi",
    }


async def test_a_share_whose_memory_is_unknown_is_not_bound() -> None:
    ctx = context({"gpu-fraction": "0.5"}, {})
    status = await NvFractions(PluginConfig(), Settings()).pre_bind(ctx)
    assert isinstance(status, Fatal)
    assert status.suggestion is Suggestion.RESCHEDULE_ELSEWHERE
    assert names.NODE_GPU_MEMORY in status.message


@pytest.mark.parametrize(("length", "suggestion"), [(34, None), (35, Suggestion.DELETE_POD)])
async def test_a_container_whose_name_does_not_fit_a_key_is_not_bound(
    length: int, suggestion: Suggestion | None
) -> None:
    ctx = context({"gpu-fraction": "0.5"}, LABELS)
    assert ctx.pod is not None
    ctx.pod["spec"]["containers"][0]["name"] = "c" * length
    status = await NvFractions(PluginConfig(), Settings()).pre_bind(ctx)
    assert (status.suggestion if isinstance(status, Fatal) else status) == (suggestion or Status.ok())
    assert ("shorten the container's name by 1 and" in status.message) is bool(suggestion)


@pytest.mark.parametrize("kind", ["Fraction", "Regular"])
async def test_a_pod_with_a_list_of_devices_that_no_binder_wrote_is_not_bound(kind: str) -> None:
    plugin = NvFractions(PluginConfig(), Settings())
    ctx = context({DEVICES: "GPU-1"}, LABELS, receivedResourceType=kind)
    assert plugin.applies(ctx.pod or {}, ctx.request)
    status = await plugin.pre_bind(ctx)
    assert isinstance(status, Fatal)
    assert status.suggestion is Suggestion.DELETE_POD
    assert DEVICES in status.message


READY = {"type": names.NODE_FRACTIONING_READY, "status": "True"}
AUTO = Settings(gpu_sharing=GpuSharingSettings(nv_fractions="Auto"))


AUTOMATIC: list[Any] = [
    pytest.param({"gpu-fraction": "0.5"}, [READY], True, "", id="a ready node"),
    pytest.param({"gpu-fraction": "0.5"}, [], False, "", id="another node, by ConfigMaps"),
    pytest.param({"gpu-fraction": "0.5"}, [READY | {"status": "Unknown"}], False, "", id="not ready"),
    pytest.param({"gpu-memory": "8192", REQUEST: "8Gi"}, [], False, REQUEST, id="what only agents enforce"),
    pytest.param({"gpu-fraction": "0.5", "gpu-fraction.limit": "0.8"}, [], False, "gpu-fraction.limit",
        id="a limit"),
]  # fmt: skip


@pytest.mark.parametrize(("annotations", "conditions", "expected", "why"), AUTOMATIC)
async def test_auto_acts_on_nodes_that_report_ready_agents(
    annotations: Json, conditions: list[Json], expected: bool, why: str
) -> None:
    plugin, ctx = NvFractions(PluginConfig(), AUTO), automatic_context(annotations, conditions)
    status = await plugin.pre_bind(ctx)
    assert isinstance(status, Fatal if why else Done)
    assert why in status.message
    assert not isinstance(status, Fatal) or status.suggestion is Suggestion.RESCHEDULE_ELSEWHERE
    if not why:
        assert bool(plugin.binding_annotations(ctx)) is expected


def automatic_context(annotations: Json, conditions: list[Json]) -> BindContext:
    """The attempt has the node as the reconciler caches it."""
    metadata = {"name": "n", "uid": "u", "resourceVersion": "1", "labels": LABELS}
    node = reduced_node({"metadata": metadata, "status": {"conditions": conditions}})
    return replace(context(annotations, LABELS), node=node)


@pytest.mark.parametrize(
    ("setting", "entry", "mode"),
    [
        pytest.param(False, None, False, id="off"),
        pytest.param("Auto", None, "Auto", id="the setting"),
        pytest.param(True, None, True, id="the setting, on every node"),
        pytest.param(False, True, True, id="the entry"),
        pytest.param("Auto", True, "Auto", id="both"),
        pytest.param("Auto", False, False, id="an entry that disables it"),
    ],
)
def test_the_setting_or_the_entry_enables_the_plugin(setting: Any, entry: bool | None, mode: Any) -> None:
    entries = () if entry is None else (PluginEntry(name="nv_fractions", enabled=entry),)
    settings = Settings(plugins=entries, gpu_sharing=GpuSharingSettings(nv_fractions=setting))
    assert settings.nv_fractions == mode
    plugins = [plugin.name for plugin in Registry(BUILTINS, discover=dict).build(settings)]
    assert ("nv_fractions" in plugins) is bool(mode)


def test_auto_adds_what_other_plugins_read_and_nothing_that_only_agents_read() -> None:
    chain = AdmissionChain(Registry(BUILTINS, discover=dict).build(AUTO), AUTO)
    by_memory, by_request = pod({"gpu-memory": "8192"}), pod({REQUEST: "8Gi"})
    for raw in (by_memory, by_request):
        assert chain.admit_pod(raw, AdmissionInfo(request_uid="s")).allowed
        assert raw["metadata"]["annotations"][names.GPU_MEMORY] == "8192"
    assert not [key for key in by_memory["metadata"]["annotations"] if key.startswith(names.NV_CONTAINER)]
