"""One binding cycle without an API server: recording doubles of the client, the writer and the caches."""

from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta
from typing import Any, cast

from prometheus_client import CollectorRegistry

from bowline.api import names
from bowline.api.bindrequest import AllocationKind, BindRequest, decode_bind_request
from bowline.api.meta import Object, ObjectKey, ObjectUID, ResourceVersion
from bowline.framework.binding.calls import PluginCaller
from bowline.framework.binding.runner import Runner
from bowline.framework.config import Binding, Settings
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.plugin import PluginConfig
from bowline.framework.interface.status import Status
from bowline.kube.availability import Availability
from bowline.kube.client import KubeClient
from bowline.kube.errors import ApiStatus, Conflict, NoResponse
from bowline.kube.writes import Ledger
from bowline.runtime.workers import Result
from bowline.testing.builders import bind_request, pod, stored
from bowline.testing.clock import SteppedClock
from bowline_reconciler.decide.actions import Event, Nomination, PodBound
from bowline_reconciler.decide.snapshot import FRESH_CONTACT, Absent
from bowline_reconciler.drive.driver import Driver
from bowline_reconciler.drive.in_flight import InFlightWrites
from bowline_reconciler.drive.pod_conditions import PodConditions
from bowline_reconciler.drive.reads import Reads
from bowline_reconciler.drive.reconciler import Reconciler
from bowline_reconciler.drive.reporter import Reporter
from bowline_reconciler.drive.requeue import Requeue, WaitIndex, WatchEvents
from bowline_reconciler.drive.state import RequestState, RequestStates
from bowline_reconciler.drive.writer import Writer
from bowline_reconciler.observe import Observation, ReconcilerMetrics
from bowline_reconciler.term.controller import new_queue
from bowline_reconciler.watch.bound_pods import BoundPodWatch, SentBind
from bowline_reconciler.watch.informers import Informers
from bowline_reconciler.watch.pod_cache import PodCache
from bowline_reconciler.watch.request_cache import RequestCache

Act = Callable[[BindContext], Awaitable[Status]]


async def bound(c: BindContext) -> Status:
    """Bind as with the API server's 201."""
    c.posts.acknowledged = True
    return Status.ok()


class Recorded(BuiltinBindingPlugin):
    """Records the calls in the cycle's log; ``acts`` defines what a point does instead of returning OK."""

    name = "recorded"
    allocations = tuple(AllocationKind)

    def __init__(self, log: list[str], acts: dict[str, Act]) -> None:
        super().__init__(PluginConfig(), Settings())
        self.log = log
        self.acts = acts
        self.questions = 0

    def has_side_effects(self, request: BindRequest, pod: Object | None) -> bool:
        self.questions += 1
        return True

    async def pre_bind(self, c: BindContext) -> Status:
        return await self._called("pre_bind", c)

    async def bind(self, c: BindContext) -> Status:
        return await self._called("bind", c, bound)

    async def post_bind(self, c: BindContext) -> None:
        await self._called("post_bind", c)

    async def rollback(self, c: BindContext, why: Status) -> Status:
        return await self._called("rollback", c)

    async def _called(self, point: str, c: BindContext, usual: Act | None = None) -> Status:
        self.log.append(point)
        act = self.acts.get(point, usual)
        return await act(c) if act is not None else Status.ok()


class RecordingConditions(PodConditions):
    """Records conditions of pods instead of writing them."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def schedule(self, pod: Object, condition: PodBound | None, nomination: Nomination | None = None) -> None:
        if condition is not None:
            self.log.append(f"condition {condition.reason}")
        if nomination is not None and nomination.is_withdrawn:
            self.log.append(f"end the nomination to {nomination.node}")


class RecordingWriter(Writer):
    """Records each write, and returns the request as an API server would store it; those in ``denials`` fail."""

    def __init__(self, log: list[str], requests: RequestCache, denials: Collection[str]) -> None:
        self.log = log
        self._denials = denials
        self._conditions = RecordingConditions(log)
        self._requests = requests

    async def add_finalizer(self, request: BindRequest, effects: Collection[str]) -> BindRequest:
        return self._stored("add finalizer", request, metadata={"finalizers": [names.FINALIZER]})

    async def drop_finalizer(self, request: BindRequest) -> BindRequest | None:
        return self._stored("drop finalizer", request, metadata={"finalizers": []})

    async def patch_status(self, request: BindRequest, status: Any) -> BindRequest:
        return self._stored(f"status {status['phase']}", request, status=status)

    def record_event(self, request: BindRequest, event: Event, on_pod: bool = True) -> None:
        self.log.append(f"event {event.reason}")

    def _stored(self, what: str, request: BindRequest, metadata: Any = None, status: Any = None) -> BindRequest:
        self.log.append(what)
        if what in self._denials:
            raise Conflict(ApiStatus(409, "Conflict", "another client has written"))
        version = str(int(request.resource_version) + 1)
        new_metadata = {**request.raw["metadata"], **(metadata or {}), "resourceVersion": version}
        after = decode_bind_request(
            {**request.raw, "metadata": new_metadata, "status": request.status if status is None else dict(status)}
        )
        self._requests.learn(after)
        return after


class Live(KubeClient):
    """Answers every read with the current pod."""

    def __init__(self, cycle: "Cycle") -> None:
        self.clock = cycle.clock
        self.ledger = Ledger(cycle.clock.monotonic)
        self._cycle = cycle

    async def get(self, *args: Any, **options: Any) -> dict[str, Any]:
        self._cycle.log.append("read pod")
        if "read pod" in self._cycle.denials:
            raise NoResponse("no reply")
        pod = self._cycle.pod
        self._cycle.clock.step(self._cycle.read_takes)
        return pod


class Binds(BoundPodWatch):
    """Shows each pod on the selected node as soon as it is bound."""

    def __init__(self, cycle: "Cycle") -> None:
        self._cycle = cycle

    async def pod_of(self, bind: SentBind) -> Object | None:
        self._cycle.bind_pod()
        return self._cycle.pod


class Caches(Informers):
    """Caches that contain the cycle's request and pod, and every node."""

    def __init__(self, cycle: "Cycle") -> None:
        self._cycle = cycle
        self.bound_pods = Binds(cycle)
        self.request_cache = RequestCache((), lambda: ResourceVersion("1"))
        self.pod_cache = PodCache(self.request_cache.__contains__)

    async def read_request(self, key: ObjectKey) -> BindRequest | Absent:
        self._cycle.log.append("read request")
        return self._cycle.request

    def in_contact(self) -> timedelta:
        return FRESH_CONTACT

    def pod(self, key: ObjectKey) -> Object | None:
        return self._cycle.pod

    def node(self, name: str) -> Object | None:
        return {"metadata": {"name": name, "uid": "node-uid"}}

    def node_ill_for(self, name: str) -> timedelta:
        return timedelta()

    def still_wanted(self, request: BindRequest, node_uid: ObjectUID | None) -> bool:
        return self._cycle.is_wanted


class Cycle:
    """The components of one binding cycle; ``log`` has their calls and writes in order."""

    def __init__(self, **acts: Act) -> None:
        self.log: list[str] = []
        self.denials: set[str] = set()  # the calls that fail
        self.read_takes = timedelta()
        self.clock = SteppedClock()
        self.is_wanted = True
        self.pod: dict[str, Any] = dict(stored(pod("train"), uid="pod-uid"))
        self.plugin = Recorded(self.log, acts)
        settings = Settings(binding=Binding(in_flight_timeout=timedelta(seconds=60)))
        observation = Observation(ReconcilerMetrics(CollectorRegistry()), self.clock)
        runner = Runner((self.plugin,), PluginCaller(observation))
        client, caches = Live(self), Caches(self)
        self.requests = caches.request_cache
        self.key = ObjectKey("default", "train")
        self.show(decode_bind_request(stored(bind_request("train", uid="pod-uid"), version="1")))
        self.states = RequestStates(self.clock.monotonic)
        self.reads = Reads(client, caches, self.states, runner, settings, lambda: 0.5)
        self.state: RequestState = self.states.ensure(self.request)
        writer = RecordingWriter(self.log, self.requests, self.denials)
        index, clock = WaitIndex({}), self.clock
        reporter = Reporter(writer, observation.metrics, clock)
        requeue = Requeue(index, reporter, observation, Availability(clock), clock, lambda: 0.5)
        client.ledger.limit = settings.binding.in_flight_timeout
        self.in_flight = InFlightWrites(client.ledger)
        self.is_busy = False
        services = (self.reads, self.states, caches, self.in_flight, runner, writer, reporter, requeue, observation)
        self.driver = Driver(*services, clock, settings.binding, lambda: self.is_busy, lambda: 0.5)
        self.reconciler = Reconciler(self.requests, self.reads, self.states, self.driver, requeue, observation, clock)
        self.events = WatchEvents(new_queue(1, Availability(clock), lambda: 0.5), self.states, caches, index)

    @property
    def request(self) -> BindRequest:
        """The newest version of the request."""
        request = self.requests.get(self.key)
        assert request is not None
        return request

    def show(self, request: BindRequest) -> None:
        """Let the watch show a version of the request."""
        self.requests.deliver(self.key, request)

    async def attempt(self) -> Result:
        """Reconcile the request, whose attempt may leave side effects."""
        return await self.reconciler.reconcile(self.request.key)

    def bind_pod(self, node: str | None = None) -> None:
        """Bind the pod, by default to the selected node, with the annotation of every attempt's Binding."""
        metadata = {**self.pod["metadata"], "annotations": {names.PREPARED_FOR: self.request.uid}}
        spec = {**self.pod["spec"], "nodeName": node or self.request.selected_node}
        self.pod = {**self.pod, "metadata": metadata, "spec": spec}

    def held(self) -> BindRequest:
        """The request with the finalizer, as after an attempt of another process."""
        raw = cast(dict[str, Any], self.request.raw)
        return decode_bind_request({**raw, "metadata": {**raw["metadata"], "finalizers": [names.FINALIZER]}})
