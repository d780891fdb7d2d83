"""Reads a request and its surroundings: from the caches first, and live where a decision requires it."""

import logging
from dataclasses import dataclass, replace
from typing import Any, assert_never

from reconciler.binding.timing import Timing
from reconciler.decide.decide import Action, ReadLive, decide
from reconciler.decide.observed import Absent, Observed, Snapshot, Target
from reconciler.informers import Informers, transform_node, transform_pod
from shared.api import names
from shared.api.bindrequest import BindRequest, decode_bind_request
from shared.api.meta import ObjectKey
from shared.framework.binding.context import BindContext, copied
from shared.framework.binding.runner import Runner, Served
from shared.framework.config import Settings
from shared.kube.client import KubeClient
from shared.kube.errors import NotFound
from shared.kube.resources import NODES, PODS, Resource
from shared.runtime.clock import Clock
from shared.runtime.logging import with_fields

log = logging.getLogger("reconciler.binding")


@dataclass(frozen=True, slots=True)
class StateReader:
    """Reads the snapshot of a request as precisely as its decision requires."""

    client: KubeClient
    informers: Informers
    runner: Runner
    timing: Timing
    settings: Settings
    clock: Clock
    uninstalling: bool = False

    async def read(self, key: ObjectKey, latest: BindRequest | None, is_stale: bool) -> tuple[Snapshot, Action]:
        """Read the caches, and live what the decision requires; returns the snapshot and the decision.

        ``latest``: the request, possibly newer than the cached one. ``is_stale``: it may be older than the stored
        one. Raises the client's errors.
        """
        snapshot = self.from_cache(key, latest)
        if is_stale:
            snapshot = await self.read_live(snapshot, Target.REQUEST)
        while isinstance(decision := self._decide(snapshot), ReadLive):
            snapshot = await self.read_live(snapshot, decision.target)
        return snapshot, decision

    async def read_live(self, snapshot: Snapshot, target: Target) -> Snapshot:
        """Return the snapshot with one object read live. Raises the client's errors, except NotFound."""
        match target:
            case Target.REQUEST:
                raw_request = await self.informers.get_request(snapshot.key)
                if isinstance(raw_request, Absent):
                    return Snapshot(snapshot.key, raw_request, live=frozenset({target}))
                # The request may name another pod now.
                return replace(
                    self.from_cache(snapshot.key, decode_bind_request(raw_request)), live=frozenset({target})
                )
            case Target.POD:
                raw = await self._get(PODS, snapshot.request.pod_key)
                pod = transform_pod(raw) if raw is not None else Absent.NOT_FOUND
                if not isinstance(pod, Absent):
                    self.informers.offer_pod(pod)
                return replace(snapshot, pod=pod, live=snapshot.live | {target})
            case Target.NODE:
                raw = await self._get(NODES, ObjectKey("", snapshot.request.selected_node))
                node = transform_node(raw) if raw is not None else Absent.NOT_FOUND
                return replace(snapshot, node=node, live=snapshot.live | {target})
            case _:
                assert_never(target)

    def from_cache(self, key: ObjectKey, request: BindRequest | None) -> Snapshot:
        """Return the snapshot of a request with the cached objects around it."""
        if request is None:
            return Snapshot(key, Absent.NOT_IN_CACHE)
        pod, node = self.informers.pod(request.pod_key), self.informers.node(request.selected_node)
        return Snapshot(
            key,
            request,
            pod if pod is not None else Absent.NOT_IN_CACHE,
            node if node is not None else Absent.NOT_IN_CACHE,
            self.timing.times(request),
        )

    def context(self, snapshot: Snapshot) -> BindContext:
        """Return the context that plugins receive: deep copies of the request, the pod and the node."""
        request, attempt = snapshot.request, snapshot.request.attempt_id
        return BindContext(
            request=replace(request, raw=copied(request.raw)),
            # Copies: whatever a plugin writes into them, the cached objects stay unchanged.
            pod=None if isinstance(snapshot.pod, Absent) else copied(snapshot.pod),
            node=None if isinstance(snapshot.node, Absent) else copied(snapshot.node),
            attempt=request.failed_attempts + 1,
            attempt_id=attempt,
            annotations={names.PREPARED_FOR: request.uid},
            deadline=self.clock.now() + snapshot.times.wait_left(self.settings.binding.wait_timeout),
            client=self.client,
            log=with_fields(log, bindRequest=str(request.key), pod=str(request.pod_key), attempt=attempt),
        )

    def _decide(self, snapshot: Snapshot) -> Action | ReadLive:
        request, preceding, plugin_answers, has_side_effects = snapshot.lookup, None, Served(frozenset()), False
        if isinstance(request, BindRequest):
            preceding = self.informers.preceding(request)
            if request.spec is not None:
                plugin_answers, has_side_effects = self.runner.served(request), self.runner.has_side_effects(request)
        observed = Observed(
            request,
            snapshot.pod_view,
            snapshot.node_view,
            preceding,
            plugin_answers.demands,
            has_side_effects,
            snapshot.times,
            snapshot.live,
            plugin_answers.errors,
            self.uninstalling,
        )
        return decide(observed, self.settings)

    async def _get(self, resource: Resource, key: ObjectKey) -> dict[str, Any] | None:
        try:
            return await self.client.get(resource, key.namespace, key.name)
        except NotFound:
            return None
