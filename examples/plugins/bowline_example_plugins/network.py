"""Network setup that waits: a ConfigMap asks another component for an address; the pod is bound once it is there."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import timedelta

from bowline import Access, AccessRule, BindContext, BindingPlugin, EventSource, Object, ObjectKey, Status
from bowline.errors import NotFound
from bowline.resources import CONFIGMAPS

NETWORK, ADDRESS, LABEL = "example.com/network", "example.com/address", "example.com/network-request"
VERBS = ("get", "list", "watch", "create", "delete")


class Network(BindingPlugin):
    name = "example_network"
    access = Access(rules=(AccessRule("configmaps", VERBS, label=LABEL),), binding_annotations=(ADDRESS,))

    def event_sources(self) -> Iterable[EventSource]:
        return (EventSource(CONFIGMAPS, label_selector=LABEL, queueing_hint=_has_address),)

    def applies(self, pod: Object, request: object) -> bool:
        return bool(_network(pod))

    async def pre_bind(self, ctx: BindContext) -> Status:
        network, (namespace, name) = _network(ctx.pod), _key(ctx)
        try:
            stored = await ctx.client.get(CONFIGMAPS, namespace, name)
        except NotFound:
            body = {"metadata": {"name": name, "labels": {LABEL: ""}}, "data": {"network": network}}
            stored = await ctx.client.create(CONFIGMAPS, namespace, body, essential=body)
        if not _has_address(ctx.request.key, stored):
            why = f"network {network} has assigned no address yet"
            return Status.wait(why, CONFIGMAPS.ref(stored), timeout=timedelta(minutes=5))
        return Status.ok(annotations={ADDRESS: stored["data"]["address"]})

    async def release(self, ctx: BindContext) -> Status:
        with suppress(NotFound):
            await ctx.client.delete(CONFIGMAPS, *_key(ctx))
        return Status.ok()


def _network(pod: Object | None) -> str:
    annotations: Mapping[str, str] = (pod or {"metadata": {}})["metadata"].get("annotations") or {}
    return annotations.get(NETWORK, "")


def _key(ctx: BindContext) -> ObjectKey:
    return ObjectKey(ctx.request.pod_key.namespace, f"network-{ctx.request.pod_uid}")


def _has_address(_: ObjectKey, configmap: Object) -> bool:
    return "address" in (configmap.get("data") or ())
