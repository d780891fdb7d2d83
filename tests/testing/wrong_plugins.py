"""Wrong plugins: those with several mistakes for one check, of which each must be named, and those with one."""

import asyncio
import itertools
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import ConfigDict

from bowline import (
    Access,
    AccessRule,
    AdmissionInfo,
    AdmissionPlugin,
    BindContext,
    BindingPlugin,
    BindRequest,
    Budgets,
    EventSource,
    FieldError,
    Handle,
    MutablePod,
    Object,
    ObjectKey,
    PluginConfig,
    Rule,
    Settings,
    Status,
)
from bowline.errors import Forbidden, InfrastructureError, KubeError
from bowline.resources import CONFIGMAPS, NODES, Resource
from tests.testing.licence import SEATS, Licence
from tests.testing.right_plugins import Outside

_KEPT: list[asyncio.Task[None]] = []
_ANSWERS: Iterator[Any] = itertools.cycle((True, "yes"))


class Unruly(AdmissionPlugin):
    """Raises, returns what it must not, and denies by what nobody can look up."""

    name = "unruly"

    def mutate_pod(self, pod: MutablePod, info: AdmissionInfo) -> None:
        return [{"op": "remove", "path": "/metadata/labels"}]  # type: ignore[return-value]

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        if "resources" not in pod["spec"]["containers"][0]:
            yield "must have resources"  # type: ignore[misc]
        yield FieldError(Rule("gpu_request/seat", "a pod has no seat"), "metadata.labels", None, "must have a seat")

    def mutate_ephemeral_containers(self, pod: MutablePod, old: Object, info: AdmissionInfo) -> None:
        raise KeyError("seats")

    def validate_ephemeral_containers(self, pod: Object, old: Object, info: AdmissionInfo) -> Iterable[FieldError]:
        return [*old["metadata"]["labels"]]


class Impure(AdmissionPlugin):
    """Uses the network, the clock and its memory, ignores `old`, and changes what it must not."""

    name = "impure"
    rules = (Rule("impure/seat", "a pod has no seat"),)
    _reviews = 0

    def mutate_pod(self, pod: MutablePod, info: AdmissionInfo) -> None:
        pod.set_annotation(SEATS, pod.annotations.get(SEATS, "") + "1")
        pod.raw["metadata"]["labels"] = {"example.com/seat": "1"}

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        with suppress(OSError), socket.create_connection(("127.0.0.1", 9), timeout=1):
            pass
        self._reviews += time.perf_counter() > 0
        pod["metadata"]["labels"] = {}
        yield FieldError(self.rules[0], "metadata.labels", self._reviews, "must have a seat")


class Guessing(BindingPlugin):
    """Decides at random, by a text or not at all, and changes the pod. Every pod without annotations would wait."""

    name = "guessing"

    def applies(self, pod: Object, request: BindRequest) -> bool:
        if "resources" in pod["spec"]["containers"][0]:
            return SEATS in pod["metadata"]["annotations"]
        pod["metadata"]["labels"] = {}
        return next(_ANSWERS)  # type: ignore[no-any-return]


class Untidy(BindingPlugin):
    """Binds the pod; blocks the event loop meanwhile, and leaves tasks and a thread behind."""

    name = "untidy"

    async def setup(self, handle: Handle) -> None:
        self._enqueue = handle.worker("sweep", self._sweep)

    async def run(self) -> None:
        _KEPT[:] = [asyncio.create_task(asyncio.sleep(3600))]

    def event_sources(self) -> Iterable[EventSource]:
        # Believes that an object was there before each change.
        return (EventSource(NODES.as_metadata(), on_change=lambda old, _: old["metadata"]),)  # type: ignore[index]

    async def pre_bind(self, ctx: BindContext) -> Status:
        self._enqueue(ctx.request.key)
        _KEPT.append(asyncio.create_task(asyncio.sleep(30)))
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        time.sleep(0.1)  # noqa: ASYNC251 - the mistake
        with suppress(OSError), socket.create_connection(("127.0.0.1", 9), timeout=1):
            pass
        end = time.thread_time() + 1.6  # a machine that pauses computes nothing
        while time.thread_time() < end:
            pass
        return Status.ok()

    async def _sweep(self, _: ObjectKey) -> None:
        raise KeyError("seats")


class Careless(Licence):
    """Writes what nothing undoes, changes its copy of the pod, and shares in another's name."""

    name = "careless"

    def has_side_effects(self, request: BindRequest, pod: Object | None) -> bool:
        return False

    async def pre_bind(self, ctx: BindContext) -> Status:
        ctx.pod["metadata"]["labels"] = {SEATS: "1"}  # type: ignore[index]
        ctx.shared["gpu_sharing/devices"] = "all"
        return await super().pre_bind(ctx)


class Undeclared(Licence):
    """Declares neither the annotation that its Binding sets nor a ConfigMap of another name."""

    name = "undeclared"
    access = replace(Licence.access, binding_annotations=())

    async def pre_bind(self, ctx: BindContext) -> Status:
        with suppress(Forbidden):
            await ctx.client.create(CONFIGMAPS, ctx.request.key.namespace, {"metadata": {"name": "seat"}})
        return await super().pre_bind(ctx)


class Remembering(Licence):
    """Keeps each request: itself, and in its class; and raises in forget."""

    name = "remembering"
    seats: ClassVar[set[str]] = set()

    def __init__(self, args: PluginConfig, settings: Settings) -> None:
        super().__init__(args, settings)
        self._bound: dict[ObjectKey, str] = {}

    async def post_bind(self, ctx: BindContext) -> None:
        self._bound[ctx.request.key] = ctx.spec.selected_node
        self.seats.add(ctx.request.pod_uid)

    async def forget(self, key: ObjectKey) -> None:
        raise KeyError(key)


class Trusting(Licence):
    """Believes in its writes, and reads nothing of what was stored."""

    name = "trusting"

    async def pre_bind(self, ctx: BindContext) -> Status:
        metadata = {"name": f"licence-{ctx.request.key.name}", "labels": {"example.com/seat": "1"}}
        with suppress(KubeError):
            await ctx.client.create(CONFIGMAPS, ctx.request.key.namespace, {"metadata": metadata})
        return Status.ok()


class Sweeping(Licence):
    """Its release removes what other pods hold as well, and blocks the event loop."""

    name = "sweeping"
    access = replace(Licence.access, rules=(AccessRule("configmaps", ("create", "list", "delete")),))

    async def release(self, ctx: BindContext) -> Status:
        time.sleep(0.1)  # noqa: ASYNC251 - the mistake
        namespace = ctx.request.key.namespace
        for item in await ctx.client.list_all(CONFIGMAPS, namespace):
            if item["metadata"]["name"].startswith("licence-"):
                await ctx.client.delete(CONFIGMAPS, namespace, item["metadata"]["name"])
        return Status.ok()


class FailingInAnOutage(Outside):
    """Blames the pod, and hides at the end that the server has not answered."""

    name = "failing_in_an_outage"
    in_an_outage = Status.retry("the server is down")
    release_in_an_outage = Status.ok()


# --- one mistake each ---


class RaisingInBind(BindingPlugin):
    name = "raising_in_bind"

    async def pre_bind(self, ctx: BindContext) -> Status:
        raise KeyError("seats")


class Hanging(BindingPlugin):
    name = "hanging"

    async def pre_bind(self, ctx: BindContext) -> Status:
        await asyncio.Event().wait()
        return Status.ok()


class CatchingAll(Outside):
    """Takes a cancellation, at what is no call of the API server, for a failure."""

    name = "catching_all"

    async def pre_bind(self, ctx: BindContext) -> Status:
        try:
            await asyncio.sleep(2)  # the cancellation comes meanwhile
            return await super().pre_bind(ctx)
        except BaseException:  # noqa: BLE001 - the mistake
            await asyncio.sleep(6)
            return Status.retry("not in time")


class ReleasingThePod(Licence):
    """Its release does nothing when the pod is gone."""

    name = "releasing_the_pod"

    async def release(self, ctx: BindContext) -> Status:
        return await super().release(ctx) if ctx.pod is not None else Status.skip()


class Counting(Licence):
    """Takes a new licence for every attempt."""

    name = "counting"
    access = replace(
        Licence.access, rules=(AccessRule("configmaps", ("list", "create", "delete"), name_prefix="licence-"),)
    )

    async def pre_bind(self, ctx: BindContext) -> Status:
        namespace, name = ctx.request.key.namespace, f"licence-{len(await self._taken(ctx))}"
        await ctx.client.create(CONFIGMAPS, namespace, {"metadata": {"name": name}})
        return Status.ok()

    async def release(self, ctx: BindContext) -> Status:
        for taken in await self._taken(ctx):
            await ctx.client.delete(CONFIGMAPS, ctx.request.key.namespace, taken["metadata"]["name"])
        return Status.ok()

    async def _taken(self, ctx: BindContext) -> list[dict[str, Any]]:
        return list(await ctx.client.list_all(CONFIGMAPS, ctx.request.key.namespace))


class Unconditional(Licence):
    """Writes its progress without a precondition: the first step of a former leader undoes the second of the next."""

    name = "unconditional"
    access = replace(Licence.access, rules=(AccessRule("configmaps", ("create", "patch", "delete")),))

    async def pre_bind(self, ctx: BindContext) -> Status:
        status = await super().pre_bind(ctx)
        key = ctx.request.key
        for progress in ("requested", "granted"):
            body = {"data": {"progress": progress}}
            await ctx.client.patch(CONFIGMAPS, key.namespace, f"licence-{key.name}", body)
        return status


class Denying(Licence):
    """Denies every new pod, also the one that it is tried with."""

    name = "denying"
    rules = (Rule("denying/seat", "a pod has no seat"),)

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        if old is None:
            yield FieldError(self.rules[0], "metadata.labels", None, "must have a seat")


class IndexingOld(AdmissionPlugin):
    """Keeps an annotation, and raises when a user adds it."""

    name = "indexing_old"
    rules = (Rule("indexing_old/seats", "the number of seats has changed"),)

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        if old is not None and old["metadata"]["annotations"][SEATS] != pod["metadata"]["annotations"][SEATS]:
            yield FieldError(self.rules[0], "metadata.annotations", None, "must not change")


class Lying(BindingPlugin):
    name = "lying"

    async def bind(self, ctx: BindContext) -> Status:
        return Status.ok()


class ConnectingAtOnce(BindingPlugin):
    """Its constructor also runs in the webhook and in lint."""

    name = "connecting_at_once"

    def __init__(self, args: PluginConfig, settings: Settings) -> None:
        super().__init__(args, settings)
        with suppress(OSError), socket.create_connection(("127.0.0.1", 9), timeout=1):
            pass


class BindingInAnOutage(Outside):
    name = "binding_in_an_outage"
    in_an_outage = Status.ok()


class Unconcerned(RaisingInBind):
    """Whatever it does wrong, the sample pod does not show it."""

    name = "unconcerned"

    def applies(self, pod: Object, request: BindRequest) -> bool:
        return False


class Skipping(BindingPlugin):
    name = "skipping"

    async def pre_bind(self, ctx: BindContext) -> Status:
        return Status.skip()


class Waiting(BindingPlugin):
    name = "waiting"

    async def pre_bind(self, ctx: BindContext) -> Status:
        return Status.wait("no seat is free")


class Clashing(AdmissionPlugin):
    name = "gpu_request"


class RememberingWhatToUndo(Licence):
    """Rolls back what it has in memory, which a restart loses."""

    name = "remembering_what_to_undo"

    def __init__(self, args: PluginConfig, settings: Settings) -> None:
        super().__init__(args, settings)
        self._taken: set[str] = set()

    async def pre_bind(self, ctx: BindContext) -> Status:
        self._taken.add(ctx.request.uid)
        return await super().pre_bind(ctx)

    async def release(self, ctx: BindContext) -> Status:
        return await super().release(ctx) if ctx.request.uid in self._taken else Status.ok()


class OutageIsFatal(Licence):
    name = "outage_is_fatal"

    async def pre_bind(self, ctx: BindContext) -> Status:
        try:
            return await super().pre_bind(ctx)
        except InfrastructureError as error:
            return Status.fatal(str(error))


class IndexingThePod(BindingPlugin):
    """Is called for every pod, and believes that each has an annotation."""

    name = "indexing_the_pod"

    async def pre_bind(self, ctx: BindContext) -> Status:
        return Status.ok() if ctx.pod and ctx.pod["metadata"]["annotations"] else Status.skip()


class Sharing(BindingPlugin):
    """Keeps a pod's value for all pods."""

    name = "sharing"
    access = Access(binding_annotations=(SEATS,))

    async def pre_bind(self, ctx: BindContext) -> Status:
        self._seat = ctx.request.pod_uid
        await asyncio.sleep(0)
        return Status.ok(annotations={SEATS: self._seat})


class Shielding(Outside):
    """A cancelled attempt takes its seat after the rollback."""

    name = "shielding"

    async def setup(self, handle: Handle) -> None:
        self._released = asyncio.Event()

    async def pre_bind(self, ctx: BindContext) -> Status:
        await asyncio.shield(self._take(ctx))
        return Status.ok()

    async def release(self, ctx: BindContext) -> Status:
        self._released.set()
        return await super().release(ctx)

    async def _take(self, ctx: BindContext) -> None:
        await asyncio.wait([asyncio.create_task(self._released.wait())], timeout=2)
        await super().pre_bind(ctx)


class _LooseArguments(PluginConfig):
    model_config = ConfigDict(extra="allow")


class Loose(BindingPlugin[_LooseArguments]):
    name = "loose"


class EndingItsTask(BindingPlugin):
    name = "ending_its_task"

    async def pre_bind(self, ctx: BindContext) -> Status:
        await asyncio.wait([asyncio.create_task(self._exit())])
        return Status.ok()

    async def _exit(self) -> None:
        raise SystemExit(3)


class Overdeclaring(Licence):
    name = "overdeclaring"
    access = replace(
        Licence.access,
        rules=(AccessRule("configmaps", ("create", "patch", "delete"), name_prefix="licence-"),),
        pod_conditions=("licence.example.com/Seated",),
    )


class Unwoken(Licence):
    """Waits once for its ConfigMap; the hint of its watch excludes the state that ends the wait."""

    name = "unwoken"
    access = replace(Licence.access, rules=(AccessRule("configmaps", ("create", "delete", "get", "list", "watch")),))
    has_waited = False

    def event_sources(self) -> Iterable[EventSource]:
        return (EventSource(CONFIGMAPS, queueing_hint=lambda _, __: False),)

    async def pre_bind(self, ctx: BindContext) -> Status:
        status, is_first, self.has_waited = await super().pre_bind(ctx), not self.has_waited, True
        stored = await ctx.client.get(CONFIGMAPS, ctx.request.key.namespace, f"licence-{ctx.request.key.name}")
        return Status.wait("the seat is not paid", CONFIGMAPS.ref(stored)) if is_first else status


class NotSetUp(BindingPlugin):
    name = "not_set_up"
    budgets = Budgets(setup_s=1)

    async def setup(self, handle: Handle) -> None:
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)


class Unserved(BindingPlugin):
    """Watches what no API server serves."""

    name = "unserved"
    access = Access(rules=(AccessRule("seats", ("list", "watch"), group="licence.example.com"),))

    def event_sources(self) -> Iterable[EventSource]:
        return (EventSource(Resource("licence.example.com", "v1", "seats", "Seat")),)

    async def pre_bind(self, ctx: BindContext) -> Status:
        return Status.ok()
