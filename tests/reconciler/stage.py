"""A complete reconciler in the test's event loop, on a real API server.

All components between the API server and the test's plugins are real, leader election included; those of the process
(options, probes, signals) are left out. Within one loop a test can block a plugin at any point and record the calls,
and waits only for conditions.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry

from bowline.api import names
from bowline.api.bindrequest import AllocationKind, BindRequest
from bowline.api.meta import Object, ObjectKey
from bowline.framework.config import Binding, Settings
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.handle import EventSource
from bowline.framework.interface.plugin import Plugin, PluginConfig
from bowline.framework.interface.status import Status
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ClusterAccess
from bowline.kube.errors import NotFound
from bowline.kube.lease import LeaseTimings, new_identity
from bowline.kube.resources import BINDREQUESTS, EVENTS, PODS
from bowline.plugins.default_binder import DefaultBinder
from bowline.runtime.clock import SystemClock
from bowline.runtime.tasks import RootTasks, ShutdownSignal
from bowline.testing.builders import bind_request, pod
from bowline_reconciler.observe import Observation, ReconcilerMetrics
from bowline_reconciler.process import RunningComponents
from bowline_reconciler.term.leader import Leadership
from bowline_reconciler.term.wiring import Components, build
from tests.waiting import until, until_awaited

# Short, so that a rollback does not wait for a Binding that was never sent; tests of that wait set their own.
NO_FLIGHT = timedelta(milliseconds=1)
# Long: no renewal or retry is due within a test.
SLOW_LEASE = LeaseTimings(timedelta(hours=3), timedelta(hours=2), timedelta(hours=1))

Act = Callable[[BindContext], Awaitable[Status]]


class ShiftedClock(SystemClock):
    """The machine's clock: ``passed`` is elapsed time, ``shift`` is how far only the wall clock is set."""

    def __init__(self) -> None:
        self.shift = timedelta()
        self.passed = timedelta()

    def now(self) -> datetime:
        return super().now() + self.shift + self.passed

    def monotonic(self) -> float:
        return super().monotonic() + self.passed.total_seconds()


class Scripted(BuiltinBindingPlugin):
    """Calls the test's function at each point and records the calls as ``(point, request name)``."""

    name = "scripted"
    allocations = tuple(AllocationKind)

    def __init__(
        self,
        *,
        effects: bool = False,
        pre_bind: Act | None = None,
        bind: Act | None = None,
        rollback: Act | None = None,
        sources: Iterable[EventSource] = (),
    ) -> None:
        super().__init__(PluginConfig(), Settings())
        self.effects = effects
        self.calls: list[tuple[str, str]] = []
        self.reasons: list[Status] = []
        self.on_pre_bind = pre_bind
        self.on_bind = bind
        self.on_rollback = rollback
        self.sources = tuple(sources)

    def points(self, name: str) -> list[str]:
        """The points called for the request of that name, in order."""
        return [point for point, request_name in self.calls if request_name == name]

    def has_side_effects(self, request: BindRequest, pod: Object | None) -> bool:
        return self.effects

    def event_sources(self) -> Iterable[EventSource]:
        return self.sources

    async def pre_bind(self, ctx: BindContext) -> Status:
        self._called("pre_bind", ctx)
        return await self.on_pre_bind(ctx) if self.on_pre_bind is not None else Status.ok()

    async def bind(self, ctx: BindContext) -> Status:
        return await self.on_bind(ctx) if self.on_bind is not None else Status.skip()

    async def post_bind(self, ctx: BindContext) -> None:
        self._called("post_bind", ctx)

    async def rollback(self, ctx: BindContext, why: Status) -> Status:
        self._called("rollback", ctx)
        self.reasons.append(why)
        return await self.on_rollback(ctx) if self.on_rollback is not None else Status.ok()

    def _called(self, point: str, ctx: BindContext) -> None:
        self.calls.append((point, ctx.request.key.name))


class StageTasks(RootTasks):
    """Root tasks that a test may end one by one, also by an error: the others go on."""

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()


@dataclass
class Working:
    """A running reconciler. ``crash`` ends it at any point; its Lease may still be released."""

    parts: Components
    stop: asyncio.Event
    client: KubeClient
    tasks: RootTasks
    running: RunningComponents
    is_running: bool = True

    def seen(self, namespace: str, name: str = "pod") -> BindRequest | None:
        """The request as the reconciler's cache contains it."""
        return self.parts.informers.request_cache.get(ObjectKey(namespace, name))

    def is_delayed(self, namespace: str, name: str = "pod") -> bool:
        """Whether the request is processed again only by an event, or when its delay ends."""
        return ObjectKey(namespace, name) in dict(self.parts.queue.snapshot(1000).delayed)

    async def pod_cached(self, namespace: str, name: str = "pod") -> None:
        """Wait until the pod is cached: a request that is processed before that reads its pod live."""
        await until(lambda: self.parts.informers.pod(ObjectKey(namespace, name)) is not None)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the reconciler's state."""
        return self.parts.memory.sizes

    async def hang(self, watch: str) -> None:
        """Block a watch: it delivers no events, like a hanging connection."""
        await self.tasks.cancel(self.running.watching[watch])

    async def crash(self) -> None:
        running, self.is_running = self.running, False
        await self.tasks.cancel(running.leading, running.events, *running.watching.values())

    async def leave(self) -> None:
        """Stop as a process does: drain, release the Lease, write the events of what was just completed."""
        self.stop.set()
        if self.is_running:
            self.is_running = False
            await self.running.shut_down()


class Stage:
    """A namespace on the API server, the test's client and, on request, reconcilers."""

    def __init__(self, client: KubeClient, access: ClusterAccess, namespace: str) -> None:
        self.client = client
        self.access = access
        self.namespace = namespace
        self.clock = ShiftedClock()

    @asynccontextmanager
    async def working(
        self,
        *plugins: Plugin,
        binding: Binding | None = None,
        options: ClientOptions | None = None,
        access: ClusterAccess | None = None,
        timings: LeaseTimings | None = None,
        lease: str = "reconciler",
        gates: Mapping[str, bool] | None = None,
        uninstalling: bool = False,
    ) -> AsyncIterator[Working]:
        """Run a reconciler with these plugins and the default binder until the block ends."""
        limits = binding or Binding(in_flight_timeout=NO_FLIGHT)
        settings = Settings(binding=limits, feature_gates=gates or {})
        client_options = options or ClientOptions(name=names.FIELD_MANAGER_RECONCILER, clock=self.clock)
        async with KubeClient(access or self.access, client_options) as client:
            chain = (*plugins, DefaultBinder(PluginConfig(), settings))
            observation = Observation(ReconcilerMetrics(CollectorRegistry()), client.clock)
            parts = await build(client, chain, settings, observation, uninstalling=uninstalling)
            stop = ShutdownSignal()
            leadership = Leadership(ObjectKey(self.namespace, lease), new_identity)
            async with StageTasks(stop) as tasks:
                running = RunningComponents(tasks, parts, leadership, timings or SLOW_LEASE, stop)
                working = Working(parts, stop, client, tasks, running)
                try:
                    yield working
                finally:
                    await working.leave()

    async def clear(self) -> None:
        """Delete everything that another test's reconciler would process."""
        for request in await self.client.list_all(BINDREQUESTS, self.namespace):
            name = request["metadata"]["name"]
            with suppress(NotFound):
                await self.client.patch(BINDREQUESTS, self.namespace, name, {"metadata": {"finalizers": []}})
                await self.client.delete(BINDREQUESTS, self.namespace, name)
        for existing_pod in await self.client.list_all(PODS, self.namespace):
            with suppress(NotFound):
                await self.delete_pod(existing_pod["metadata"]["name"])

    # --- writes ---

    async def create_pod(self, name: str = "pod", annotations: Mapping[str, str] | None = None, **spec: Any) -> str:
        body = pod(name, self.namespace, **spec)
        body["metadata"]["annotations"] = dict(annotations or {})
        made = await self.client.create(PODS, self.namespace, body)
        return str(made["metadata"]["uid"])

    async def delete_pod(self, name: str = "pod") -> None:
        await self.client.delete(PODS, self.namespace, name, grace_period_s=0)

    async def request_bind(
        self, name: str = "pod", node: str = "gpu-node-0", metadata: Object | None = None, **spec: Any
    ) -> str:
        """Create the BindRequest of a pod; returns its UID."""
        uid = (await self.pod(spec.get("podName", name)))["metadata"]["uid"]
        body = bind_request(name, node, self.namespace, **{"podUID": uid, **spec})
        body["metadata"] |= metadata or {}
        made = await self.client.create(BINDREQUESTS, self.namespace, body)
        return str(made["metadata"]["uid"])

    async def withdraw(self, name: str = "pod") -> None:
        """Delete the BindRequest."""
        await self.client.delete(BINDREQUESTS, self.namespace, name)

    async def past_the_silent_period(self, working: Working, *names: str) -> None:
        """Let waits last long enough to be reported; from then on only a change wakes them."""
        await until(lambda: working.sizes["waitIndex"] >= len(names))
        self.clock.passed += timedelta(seconds=6)
        for name in names:
            body = {"metadata": {"labels": {"touched": "yes"}}}
            await self.client.patch(BINDREQUESTS, self.namespace, name, body)
        for name in names:
            await until_awaited(partial(self.status, name), lambda status: "Waiting" in status.get("reason", ""))
            # The watch event of its own write wakes it once more.
            await until(partial(self._is_reported_and_idle, working, name))

    def _is_reported_and_idle(self, working: Working, name: str) -> bool:
        seen = working.seen(self.namespace, name)
        is_reported = seen is not None and "Waiting" in seen.status.get("reason", "")
        return is_reported and working.is_delayed(self.namespace, name)

    # --- reads ---

    async def pod(self, name: str = "pod") -> dict[str, Any]:
        return await self.client.get(PODS, self.namespace, name)

    async def request(self, name: str = "pod") -> dict[str, Any]:
        return await self.client.get(BINDREQUESTS, self.namespace, name)

    async def status(self, name: str = "pod") -> dict[str, Any]:
        status: dict[str, Any] = (await self.request(name)).get("status") or {}
        return status

    async def phase(self, name: str, *phases: str) -> dict[str, Any]:
        """Wait until the request is in one of the phases; returns its status."""
        return await until_awaited(lambda: self.status(name), lambda status: status.get("phase") in phases)

    async def request_deleted(self, name: str = "pod") -> None:
        """Wait until the request is deleted."""

        async def deleted() -> bool:
            try:
                await self.request(name)
            except NotFound:
                return True
            return False

        await until_awaited(deleted, bool)

    async def events(self, name: str = "pod") -> list[str]:
        """Reasons of Bowline's events about an object, oldest first."""
        events = (await self.client.list(EVENTS, self.namespace))["items"]
        # Those about a request repeat those about its pod.
        first = [e for e in events if e["regarding"]["kind"] != "BindRequest" or not e.get("related")]
        mine = [e for e in first if e["regarding"].get("name") == name]
        return [e["reason"] for e in sorted(mine, key=lambda e: str(e["eventTime"]))]

    async def event(self, name: str, reason: str) -> list[str]:
        """Wait for an event; returns all so far."""
        return await until_awaited(lambda: self.events(name), lambda seen: reason in seen)


class Hold:
    """Blocks a plugin: ``await hold(c)`` in the plugin, ``reached`` and ``go`` in the test."""

    def __init__(self, answer: Status | None = None) -> None:
        self.reached = asyncio.Event()
        self.go = asyncio.Event()
        self.answer = answer or Status.ok()
        self.cancelled = False

    async def __call__(self, ctx: BindContext) -> Status:
        self.reached.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return self.answer


async def touch(stage: Stage, name: str) -> None:
    """Change a request, which may be gone, so that it is reconciled."""
    with suppress(NotFound):
        await stage.client.patch(BINDREQUESTS, stage.namespace, name, {"metadata": {"labels": {"again": "yes"}}})
