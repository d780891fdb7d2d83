"""A plugin's watch callbacks: exceptions affect one object only."""

from collections.abc import Iterable
from typing import Any

from prometheus_client import CollectorRegistry

from bowline.api import names
from bowline.api.meta import Object, ObjectKey
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.handle import EventSource
from bowline.framework.interface.status import Status
from bowline.kube.client import ClientOptions
from bowline.kube.metrics import KubeMetrics
from bowline.kube.resources import CONFIGMAPS
from bowline.testing.builders import configmap
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import until


async def test_an_object_that_a_plugin_cannot_handle_stops_neither_its_watch_nor_binding(stage: Stage) -> None:
    def transform(raw: dict[str, Any]) -> Object:
        return {**raw, "ready": raw["data"]["ready"] == "yes"}  # KeyError for one without

    def keys(config_map: Object) -> Iterable[ObjectKey]:
        name = config_map["metadata"]["name"]
        if name == "raises":
            raise ValueError("a name that is not understood")
        return ("default/pod",) if name == "wrong-type" else (ObjectKey(stage.namespace, "pod"),)  # type: ignore[return-value]

    def on_change(old: Object | None, new: Object | None) -> None:
        if new is not None and new["metadata"]["name"] == "raises":
            raise ValueError("nor its change")

    async def until_ready(ctx: BindContext) -> Status:
        ready = any(config_map["ready"] for config_map in working.parts.reflectors["scripted/0"].store.values())
        return Status.ok() if ready else Status.wait("nothing is ready")

    source = EventSource(CONFIGMAPS, keys=keys, transform=transform, on_change=on_change, label_selector="of=plugin")
    registry = CollectorRegistry()
    options = ClientOptions(name=names.FIELD_MANAGER_RECONCILER, metrics=KubeMetrics(registry), clock=stage.clock)
    plugin = Scripted(pre_bind=until_ready, sources=[source])
    async with stage.working(plugin, options=options) as working:
        await stage.create_pod()
        await stage.request_bind()
        await until(lambda: working.sizes["waitIndex"] == 1)
        for name, data in (("poison", {}), ("raises", {"ready": "no"}), ("wrong-type", {"ready": "no"})):
            body = configmap(name, **data)
            body["metadata"]["labels"] = {"of": "plugin"}
            await stage.client.create(CONFIGMAPS, stage.namespace, body)
        await until(
            lambda: working.parts.reflectors["scripted/0"].store.get(ObjectKey(stage.namespace, "wrong-type"))
        )
        body = configmap("good", ready="yes")
        body["metadata"]["labels"] = {"of": "plugin"}
        await stage.client.create(CONFIGMAPS, stage.namespace, body)
        await stage.phase("pod", "Succeeded")
    counted = {
        callback: registry.get_sample_value(
            "bowline_reflector_callback_errors_total",
            {"plugin": "scripted", "resource": "configmaps", "callback": callback},
        )
        for callback in ("transform", "keys", "on_change")
    }
    assert counted == {"transform": 1, "keys": 2, "on_change": 1}
