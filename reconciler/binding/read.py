"""Reads a request and its surroundings: from the caches first, and live where a decision requires it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from reconciler.decide.decide import Decision, Look, decide
from reconciler.decide.observed import Absent, NodeView, Observed, PodView, Policy, Target, Times, node_view, pod_view
from reconciler.informers import Informers, transform_node, transform_pod
from shared.api.bindrequest import BindRequest, decode_bind_request
from shared.api.meta import Object, ObjectKey
from shared.framework.binding.runner import Runner, Served
from shared.kube.client import KubeClient
from shared.kube.errors import NotFound
from shared.kube.resources import NODES, PODS, Resource
from shared.runtime.clock import Clock

# For how long a request has been known and has waited, and its remaining pause.
TimesOf = Callable[[BindRequest], Times]


@dataclass(slots=True)
class Snapshot:
    """The snapshot of one reconcile. Objects are raw because plugins receive them. ``live``: targets read live."""

    key: ObjectKey
    request: BindRequest | Absent
    pod: Object | Absent = Absent.NOT_IN_CACHE
    node: Object | Absent = Absent.NOT_IN_CACHE
    live: set[Target] = field(default_factory=set)

    @property
    def pod_view(self) -> PodView | Absent:
        """The pod's fields that decisions use."""
        return self.pod if isinstance(self.pod, Absent) else pod_view(self.pod)

    @property
    def node_view(self) -> NodeView | Absent:
        """The node's fields that decisions use."""
        return self.node if isinstance(self.node, Absent) else node_view(self.node)

    @property
    def asked(self) -> BindRequest:
        """The request. Only valid if it was found; before that there is no pod or node to read."""
        assert isinstance(self.request, BindRequest)  # noqa: S101 - decide() requires the request first
        return self.request


class StateReader:
    """Reads the snapshot of a request as precisely as its decision requires."""

    def __init__(self, client: KubeClient, stores: Informers, runner: Runner, policy: Policy, clock: Clock) -> None:
        self._client = client
        self._stores = stores
        self._runner = runner
        self._policy = policy
        self._clock = clock

    async def see(
        self, key: ObjectKey, newest: BindRequest | None, ask_live: bool, times: TimesOf
    ) -> tuple[Snapshot, Decision]:
        """Read the caches, and live what the decision requires; returns the snapshot and the decision.

        ``newest``: the request, possibly newer than the cached one. ``ask_live``: the cached request is known to be
        stale.
        """
        sight = self.from_stores(key, newest)
        if ask_live:
            await self.look(sight, Target.REQUEST)
        decision = self._decide(sight, times)
        while isinstance(decision, Look):
            await self.look(sight, decision.target)
            decision = self._decide(sight, times)
        return sight, decision

    async def look(self, sight: Snapshot, target: Target) -> None:
        """Read one object from the API server into the snapshot. Raises the client's errors, except NotFound."""
        match target:
            case Target.REQUEST:
                found = await self._stores.get_request(sight.key)
                fresh = self.from_stores(sight.key, None if isinstance(found, Absent) else decode_bind_request(found))
                sight.request = found if isinstance(found, Absent) else fresh.request
                sight.pod, sight.node = fresh.pod, fresh.node
                sight.live.clear()  # the request may name another pod now
            case Target.POD:
                raw = await self._get(PODS, sight.asked.pod_key)
                pod = transform_pod(raw) if raw is not None else None
                if pod is not None:
                    self._stores.offer_pod(pod)
                sight.pod = pod if pod is not None else Absent.GONE
            case Target.NODE:
                raw = await self._get(NODES, ObjectKey("", sight.asked.selected_node))
                sight.node = transform_node(raw) if raw is not None else Absent.GONE
        sight.live.add(target)

    def from_stores(self, key: ObjectKey, request: BindRequest | None) -> Snapshot:
        """Return the cached objects around a request."""
        if request is None:
            return Snapshot(key, Absent.NOT_IN_CACHE)
        pod, node = self._stores.pod(request.pod_key), self._stores.node(request.selected_node)
        return Snapshot(
            key,
            request,
            pod if pod is not None else Absent.NOT_IN_CACHE,
            node if node is not None else Absent.NOT_IN_CACHE,
        )

    def _decide(self, sight: Snapshot, times: TimesOf) -> Decision:
        older, served, lasted = None, Served(frozenset()), Times()
        if isinstance(sight.request, BindRequest):
            older = self._stores.older(sight.request)
            served = self._runner.served(sight.request) if sight.request.spec is not None else served
            lasted = times(sight.request)
        seen = Observed(
            sight.request,
            sight.pod_view,
            sight.node_view,
            older,
            served.demands,
            lasted,
            frozenset(sight.live),
            served.errors,
        )
        return decide(seen, self._policy)

    async def _get(self, resource: Resource, key: ObjectKey) -> dict[str, Any] | None:
        try:
            return await self._client.get(resource, key.namespace, key.name)
        except NotFound:
            return None
