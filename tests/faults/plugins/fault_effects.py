"""A plugin whose preparation has side effects in the API: for tests of crashes, rollback and waits.

A request's annotations control it: ``effect`` makes pre_bind create a Secret that only rollback removes (the chart's
policies let the reconciler write only the ConfigMaps of shares), ``gate`` names a ConfigMap that must exist before it
continues, ``refuse`` makes it return FATAL at the end. Loaded by its entry point when this folder is on PYTHONPATH;
nothing is installed.
"""

from collections.abc import Iterable
from contextlib import suppress

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import Object, ObjectKey, ObjectRef
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.handle import EventSource
from bowline.framework.interface.status import Status
from bowline.framework.reason import Reason
from bowline.kube.errors import AlreadyExists, NotFound
from bowline.kube.resources import CONFIGMAPS, SECRETS

EFFECT = "faults.example/effect"
GATE = "faults.example/gate"
REFUSE = "faults.example/refuse"
# On a gate: the request that waits for it. On an effect: its request.
WAKES = "faults.example/wakes"
OWNER = "faults.example/request-uid"


class FaultEffects(BuiltinBindingPlugin):
    """Creates, waits and rejects as the request's annotations request; its rights are those of the test."""

    name = "fault_effects"

    def has_side_effects(self, request: BindRequest, pod: Object | None) -> bool:
        """Only an effect needs a rollback."""
        return EFFECT in _annotations(request)

    def event_sources(self) -> Iterable[EventSource]:
        """A gate wakes the request that it names."""
        return (EventSource(CONFIGMAPS, _woken, label_selector=WAKES),)

    def applies(self, pod: Object, request: BindRequest) -> bool:
        """Only requests with our annotations are concerned."""
        return not {EFFECT, GATE, REFUSE}.isdisjoint(_annotations(request))

    async def pre_bind(self, ctx: BindContext) -> Status:
        """Effect first, then the gate: so the effect exists while the request waits."""
        annotations = _annotations(ctx.request)
        if EFFECT in annotations:
            await _ensure_effect(ctx)
        if GATE in annotations:
            gate = ObjectKey(ctx.request.key.namespace, annotations[GATE])
            try:
                await ctx.client.get(CONFIGMAPS, gate.namespace, gate.name)
            except NotFound:
                return Status.wait("the gate is not there", ObjectRef("v1", "ConfigMap", gate))
        if REFUSE in annotations:
            return Status.fatal("refused on purpose", Reason.REJECTED)
        return Status.ok()

    async def rollback(self, ctx: BindContext, why: Status) -> Status:
        """Remove the effect; its name is derived from the request, which needs no state."""
        with suppress(NotFound):
            await ctx.client.delete(SECRETS, ctx.request.key.namespace, _effect_name(ctx.request))
        return Status.ok()


async def _ensure_effect(ctx: BindContext) -> None:
    namespace, name = ctx.request.key.namespace, _effect_name(ctx.request)
    try:
        await ctx.client.get(SECRETS, namespace, name)
    except NotFound:
        body = {"metadata": {"name": name, "labels": {OWNER: ctx.request.uid}}}
        with suppress(AlreadyExists):
            await ctx.client.create(SECRETS, namespace, body)


def _effect_name(request: BindRequest) -> str:
    return f"effect-{request.uid}"


def _annotations(request: BindRequest) -> dict[str, str]:
    return request.raw["metadata"].get("annotations") or {}


def _woken(gate: Object) -> Iterable[ObjectKey]:
    metadata = gate["metadata"]
    return (ObjectKey(metadata["namespace"], metadata["labels"][WAKES]),)
