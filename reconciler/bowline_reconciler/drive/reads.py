"""Reads a request and its surroundings, and decides: from the caches first, and live where a decision requires it.

The newest known version of a request is cached (``request_cache``); what is remembered under its key may be of a
former request of that name, of which something may be left.

Within a process only the monotonic clock counts for how long a request has been known, has waited and must pause.
Across restarts there is only the stored status, which may be off by the difference of two machines' clocks: so a
restored wait lasts FRESH_CONTACT at least, and a restored pause is limited to the longest possible one.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from bowline.api import names
from bowline.api.bindrequest import BindRequest
from bowline.api.meta import ObjectKey
from bowline.api.node_view import node_view, reduced_node
from bowline.api.reduction import reduced_pod
from bowline.framework.binding.runner import Runner
from bowline.framework.config import Settings
from bowline.framework.interface.context import BindContext
from bowline.kube.client import KubeClient
from bowline.kube.errors import NotFound, Unreadable
from bowline.kube.resources import NODES, PODS, Resource
from bowline_reconciler.decide.actions import Action, Fail, RequeueAfter
from bowline_reconciler.decide.decide import ReadLive, decide
from bowline_reconciler.decide.outcome import backoff
from bowline_reconciler.decide.snapshot import (
    Absent,
    PodView,
    Snapshot,
    Target,
    Times,
    pod_view,
    set_aside_for,
    stored_pause,
    stored_wait,
)
from bowline_reconciler.drive.state import NO_WAIT, RequestState, RequestStates, Running
from bowline_reconciler.watch.informers import Informers

_ZERO = timedelta()


@dataclass(frozen=True, slots=True)
class Reads:
    """What is known of requests: cached, remembered and stored, and what is decided from it.

    ``jitter`` returns a random number in [0, 1). ``uninstalling``: every request is rolled back, none is attempted.
    """

    client: KubeClient
    informers: Informers
    states: RequestStates
    runner: Runner
    settings: Settings
    jitter: Callable[[], float]
    uninstalling: bool = False

    async def read(
        self, key: ObjectKey, request: BindRequest | None, state: RequestState | None
    ) -> tuple[Snapshot, Action] | Absent:
        """Read the caches, and live what the decision requires; returns the snapshot and the decision.

        ``request``: as cached, None if it must be read live; ``state``: of it. Absent if a live read shows that there
        is no such request. Raises the client's errors.
        """
        snapshot = self.from_cache(request, state) if request is not None else None
        while True:
            if snapshot is None:
                live_request = await self.informers.read_request(key)
                if isinstance(live_request, Absent):
                    return live_request
                state = self.states.of(live_request)  # the request may be another one now
                snapshot = replace(self.from_cache(live_request, state), live=frozenset({Target.REQUEST}))
            is_ending = snapshot.request.deleting or self.uninstalling
            set_aside, now = snapshot.request.condition(names.CONDITION_SET_ASIDE), self.client.clock.now()
            left = set_aside_for(snapshot.request, now, is_ending=is_ending) if set_aside else _ZERO
            if left > _ZERO:
                return snapshot, RequeueAfter(left, str(set_aside.get("message")))
            snapshot = self._answered(snapshot)
            decision = decide(snapshot, self.settings)
            if not isinstance(decision, ReadLive):
                return snapshot, decision
            is_of_request = decision.target is Target.REQUEST
            snapshot = None if is_of_request else await self.read_live(snapshot, decision.target)

    async def read_live(self, snapshot: Snapshot, target: Target) -> Snapshot:
        """Return the snapshot with its pod or node read live. Raises the client's errors, except NotFound."""
        live = snapshot.live | {target}
        if target is Target.NODE:
            raw_node = await self._get(NODES, ObjectKey("", snapshot.request.selected_node))
            if isinstance(raw_node, Absent):
                return replace(snapshot, node=raw_node, live=live)
            self.informers.offer_node(raw_node)
            return replace(snapshot, node=node_view(reduced_node(raw_node)), live=live)
        raw = await self._get(PODS, snapshot.request.pod_key)
        if raw is Absent.UNREADABLE:
            return replace(snapshot, pod=await self._bound_unreadable_pod(snapshot.request), live=live, answers=None)
        if isinstance(raw, Absent):
            return replace(snapshot, pod=raw, live=live, answers=None)
        reduced = reduced_pod(raw)
        self.informers.pod_cache.offer(reduced)
        pod, former = pod_view(reduced), snapshot.pod
        is_same = not isinstance(former, Absent) and former.version == pod.version
        return replace(snapshot, pod=pod, live=live, answers=snapshot.answers if is_same else None)

    async def with_pod(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with its pod, read live if it is not cached, as large pods are not."""
        is_missing = snapshot.pod is Absent.NOT_IN_CACHE
        return await self.read_live(snapshot, Target.POD) if is_missing else snapshot

    async def with_live_pod(self, request: BindRequest, state: RequestState | None = None) -> Snapshot:
        """Return the snapshot of a request with its pod, read live."""
        return await self.read_live(self.from_cache(request, state), Target.POD)

    def from_cache(self, request: BindRequest, state: RequestState | None) -> Snapshot:
        """Return the snapshot of a request with the cached objects around it. ``state``: the request's, if any."""
        times, node_ill_for = self.times(request, state), self.informers.node_ill_for(request.selected_node)
        node, pod = self.informers.node(request.selected_node), self.informers.pod(request.pod_key)
        return Snapshot(
            request,
            pod_view(pod) if pod is not None else Absent.NOT_IN_CACHE,
            node_view(node) if node is not None else Absent.NOT_IN_CACHE,
            times,
            node_ill_for=node_ill_for,
            uninstalling=self.uninstalling,
            was_delayed=state is not None and (bool(state.wait.cause) or state.failures.count > 0),
            ending=state.rollback.ending if state is not None else None,
        )

    def context(self, snapshot: Snapshot, state: RequestState | None) -> BindContext:
        """Return the context of which each plugin receives a view of its own. It has the cached objects themselves.

        ``state``: the request's, with the attempt that the context is for, if there is one.
        """
        request = snapshot.request
        running = (state.attempt.running if state is not None else None) or Running(request)
        return BindContext(
            request=request,
            pod=snapshot.own_pod,
            node=None if isinstance(snapshot.node, Absent) else snapshot.node.raw,
            attempt=request.failed_attempts + 1,
            annotations={names.PREPARED_FOR: request.uid},
            client=self.client,
            cancelled=running.cancelled,
            posts=running.posts,
            answers=snapshot.answers,
            states=state.of_plugins if state is not None else {},
        )

    def failure(self, snapshot: Snapshot) -> Fail | None:
        """Return the failure that is decided on for the snapshot, whose pod was read live; None if none is."""
        decision = decide(self._answered(snapshot), self.settings)
        return decision if isinstance(decision, Fail) else None

    def _answered(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with the answers of the plugins, which are asked if they were not."""
        if snapshot.answers is not None:
            return snapshot
        return replace(snapshot, answers=self.runner.answers(snapshot.request, snapshot.own_pod))

    async def _get(self, resource: Resource, key: ObjectKey) -> dict[str, Any] | Absent:
        try:
            return await self.client.get(resource, key.namespace, key.name)
        except NotFound:
            return Absent.NOT_FOUND
        except Unreadable:
            return Absent.UNREADABLE

    async def _bound_unreadable_pod(self, request: BindRequest) -> PodView | Absent:
        """Return identity and node of a pod that is not decoded, if it is bound as asked: nothing may be rolled back.

        Its fields are not read, but API servers select by them.
        """
        where = f"metadata.name={request.pod_key.name},spec.nodeName={request.selected_node}"
        page = await self.client.list(PODS.as_metadata(), request.pod_key.namespace, field_selector=where, limit=1)
        for pod in page["items"] or ():
            return pod_view({"metadata": pod["metadata"], "spec": {"nodeName": request.selected_node}})
        return Absent.UNREADABLE

    # --- times ---

    def times(self, request: BindRequest, state: RequestState | None) -> Times:
        """Return the request's times, with those of its present wait, as they are now."""
        now = self.client.clock.monotonic()
        age = _since(state.since, now) if state is not None else _ZERO
        retry_in, contact = self._retry_in(request, state, now), self.informers.in_contact()
        if state is None or not state.wait.cause:
            restored_wait = stored_wait(request, self.client.clock.now()) if request.conditions else None
            watch_time = contact if restored_wait is None else _ZERO
            return Times(age, restored_wait or _ZERO, watch_time, retry_in)
        wait = state.wait
        if wait.cause == NO_WAIT:
            return Times(age, _ZERO, contact, retry_in)
        watch_time = min(contact, _since(wait.restored_at, now)) if wait.restored_at else contact
        now = wait.paused_at if wait.paused_at is not None else now
        waited = {cause: _since(first_wait, now) for cause, first_wait in wait.first_waits.items()}
        wait_time = _since(wait.began, now) if waited else _ZERO
        return Times(age, wait_time, watch_time, retry_in, waited, wait.longest)

    def _retry_in(self, request: BindRequest, state: RequestState | None, now: float) -> timedelta:
        retry_at = state.attempt.retry_at if state is not None else None
        if retry_at is not None:
            return max(_ZERO, timedelta(seconds=retry_at - now))
        limits, failures = self.settings.binding, request.failed_attempts
        if request.next_attempt is not None:
            return stored_pause(request, self.client.clock.now(), limits.backoff.max)
        # Another project's CRD does not store nextAttemptTime.
        return backoff(failures, limits, self.jitter()) if failures else _ZERO


def _since(moment: float, now: float) -> timedelta:
    return timedelta(seconds=max(0.0, now - moment))
