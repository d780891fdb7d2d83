"""Reads a request and its surroundings, and decides: from the caches first, and live where a decision requires it.

Within a process only the monotonic clock counts for how long a request has been known, has waited and must pause.
Across restarts there is only the stored status, which may be off by the difference of two machines' clocks: so a
restored wait lasts FRESH_CONTACT at least, and a restored pause is limited to the longest possible one. Decision 117.
"""

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, assert_never

from bowline.api import names
from bowline.api.bindrequest import BindRequest, PodID, decode_bind_request
from bowline.api.meta import ObjectKey, ObjectUID
from bowline.api.node_view import reduced_node
from bowline.framework.binding.context import BindContext, copied
from bowline.framework.binding.runner import Runner, Served
from bowline.framework.config import Settings
from bowline.framework.plugin_status import Code
from bowline.kube.client import KubeClient
from bowline.kube.errors import ApiError, NotFound, TooLarge
from bowline.kube.late_writes import LateWrites, noting
from bowline.kube.resources import NODES, PODS, Resource
from bowline.runtime.logging import with_fields
from bowline_reconciler.binding.in_flight import InFlightWrites
from bowline_reconciler.binding.state import NO_WAIT, RequestState, RequestStates
from bowline_reconciler.decide.actions import Action, OutcomeAction
from bowline_reconciler.decide.decide import ReadLive, decide
from bowline_reconciler.decide.outcome import backoff, classify_outcome
from bowline_reconciler.decide.snapshot import (
    Absent,
    Observed,
    Outcome,
    Snapshot,
    Target,
    Times,
    order_key,
    preceding_request,
    stored_pause,
    stored_wait,
)
from bowline_reconciler.informers import Informers, transform_pod

log = logging.getLogger("bowline_reconciler.binding")

_ZERO = timedelta()


class RequestStore:
    """The requests: cached, remembered and stored, and what is decided from them.

    ``jitter`` returns a random number in [0, 1). ``uninstalling``: every request is rolled back, none is attempted.
    ``wake`` requeues a request.
    """

    def __init__(
        self,
        client: KubeClient,
        informers: Informers,
        runner: Runner,
        settings: Settings,
        jitter: Callable[[], float],
        *,
        uninstalling: bool = False,
        wake: Callable[[ObjectKey], None] = lambda _: None,
    ) -> None:
        self.informers = informers
        self.runner = runner
        self.settings = settings
        self.clock = client.clock
        self.states = RequestStates(client.clock.monotonic, self._pod_released)
        self.in_flight = InFlightWrites(client.clock, settings.binding.in_flight_timeout)
        self.stale_keys: set[ObjectKey] = set()
        self._client = client
        self._jitter = jitter
        self._wake = wake
        self.uninstalling = uninstalling

    async def read(self, key: ObjectKey, latest: BindRequest | None, is_stale: bool) -> tuple[Snapshot, Action]:
        """Read the caches, and live what the decision requires; returns the snapshot and the decision.

        ``latest``: the request, possibly newer than the cached one. ``is_stale``: it may be older than the stored
        one. Raises the client's errors.
        """
        snapshot = self.from_cache(key, latest)
        if is_stale or key in self.stale_keys:
            snapshot = await self.read_live(snapshot, Target.REQUEST)
        while isinstance(decision := self.decide_on(snapshot), ReadLive):
            snapshot = await self.read_live(snapshot, decision.target)
        self.stale_keys.discard(key)
        return snapshot, decision

    def start_term(self, since: float, stale: Collection[ObjectKey], newest: datetime | None) -> None:
        """Begin a leadership term at ``since`` (monotonic).

        ``stale``: keys whose cached request may be older than the previous leader's last writes. ``newest``: the
        latest creationTimestamp of the stored requests.
        """
        self.in_flight.start_term(since, newest)
        self.stale_keys.update(stale)

    def clear(self) -> Sequence[tuple[ObjectKey, ObjectUID]]:
        """Drop all states, at the end of a term; returns their keys and UIDs."""
        self.stale_keys.clear()
        return self.states.clear()

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
                try:
                    raw = await self._get(PODS, snapshot.request.pod_key)
                except TooLarge:
                    return replace(snapshot, pod=Absent.TOO_LARGE, live=snapshot.live | {target})
                pod = transform_pod(raw) if raw is not None else Absent.NOT_FOUND
                if not isinstance(pod, Absent):
                    self.informers.offer_pod(pod)
                return replace(snapshot, pod=pod, live=snapshot.live | {target})
            case Target.NODE:
                raw = await self._get(NODES, ObjectKey("", snapshot.request.selected_node))
                node = reduced_node(raw) if raw is not None else Absent.NOT_FOUND
                return replace(snapshot, node=node, live=snapshot.live | {target})
            case _:
                assert_never(target)

    async def with_pod(self, snapshot: Snapshot) -> Snapshot:
        """Return the snapshot with its pod, read live if it is not cached, as large pods are not."""
        is_missing = snapshot.pod is Absent.NOT_IN_CACHE
        return await self.read_live(snapshot, Target.POD) if is_missing else snapshot

    async def refute(self, writes: LateWrites) -> None:
        """Read the objects that writes without a reply would change: another version proves that they cannot land.

        Raises InfrastructureError.
        """
        with noting(writes):
            for target in writes.guarded_objects():
                with suppress(ApiError):
                    await self._client.get(target.resource, target.key.namespace, target.key.name)

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
            self._times(request),
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
            client=self._client,
            log=with_fields(log, bindRequest=str(request.key), pod=str(request.pod_key), attempt=attempt),
        )

    def is_held(self, request: BindRequest) -> bool:
        """Return whether the request keeps its finalizer until its bound pod has ended. Decision 282."""
        return bool(self.runner.holders(request))

    def follow_up(self, request: BindRequest, outcome: Outcome) -> OutcomeAction:
        """Return what an attempt's outcome means for the request."""
        times = self._times(request) if outcome.status.code is Code.WAIT else Times()
        return classify_outcome(request, outcome, self.settings.binding, self._jitter(), times, self.clock.now())

    def decide_on(self, snapshot: Snapshot) -> Action | ReadLive:
        """Return the decision for the snapshot, or the live read that it still requires."""
        request, preceding, plugin_answers = snapshot.lookup, None, Served(frozenset())
        effects: frozenset[str] = frozenset()
        ending, rival_writes = None, _ZERO
        if isinstance(request, BindRequest):
            state = self.states.get(request.key, request.uid)
            ending = state.rollback.ending if state is not None else None
            preceding, rival_writes = self._rivals(request)
            if request.spec is not None:
                pod = None if isinstance(snapshot.pod, Absent) else snapshot.pod
                plugin_answers = self.runner.served(request)
                effects = self.runner.effects(request, pod)
        observed = Observed(
            request,
            snapshot.pod_view,
            snapshot.node_view,
            preceding,
            plugin_answers.demands,
            effects,
            snapshot.times,
            snapshot.live,
            plugin_answers.errors,
            self.informers.node_ill_for(request.selected_node) if isinstance(request, BindRequest) else _ZERO,
            self.uninstalling,
            rival_writes,
            isinstance(request, BindRequest) and self.is_held(request),
        )
        return decide(observed, self.settings, ending)

    def _rivals(self, request: BindRequest) -> tuple[ObjectKey | None, timedelta]:
        """Return the request to wait for, and for how long a former leader's writes for others may take effect."""
        holder = self.states.holder(request)
        if holder == request.key:
            return None, _ZERO
        rivals = self._unfinished(request.pod_key, request.pod_uid)
        preceding = preceding_request(request, rivals) or holder
        others = [rival for rival in rivals if rival.key != request.key]
        return preceding, max(map(self.in_flight.inherited, others), default=_ZERO)

    def _unfinished(self, pod_key: ObjectKey, pod_uid: ObjectUID) -> Sequence[BindRequest]:
        """Return the cached requests for a pod, without those that this process has finished."""
        rivals = self.informers.rivals(pod_key, pod_uid)
        states = [(rival, self.states.get(rival.key, rival.uid)) for rival in rivals]
        return [rival for rival, state in states if state is None or not state.is_finished]

    def _pod_released(self, pod: PodID, by: ObjectKey) -> None:
        """Requeue the first of the other requests for a pod that no request holds any more."""
        waiting = [rival for rival in self._unfinished(*pod) if rival.key != by]
        if waiting:
            self._wake(min(waiting, key=order_key).key)

    async def _get(self, resource: Resource, key: ObjectKey) -> dict[str, Any] | None:
        try:
            return await self._client.get(resource, key.namespace, key.name)
        except NotFound:
            return None

    # --- times ---

    def _times(self, request: BindRequest) -> Times:
        """Return the request's times, with those of its present wait."""
        now, contact = self.clock.monotonic(), self.informers.in_contact()
        state = self.states.get(request.key, request.uid)
        age = _since(state.since, now) if state is not None else _ZERO
        retry_in = self._retry_in(request, state, now)
        if state is None or not state.wait.cause:
            restored_wait = stored_wait(request, self.clock.now())
            watch_time = contact if restored_wait is None else _ZERO
            return Times(age, restored_wait or _ZERO, watch_time, retry_in)
        wait = state.wait
        if wait.cause == NO_WAIT:
            return Times(age, _ZERO, contact, retry_in)
        watch_time = min(contact, _since(wait.restored_at, now)) if wait.restored_at else contact
        waited = {cause: _since(first_wait, now) for cause, first_wait in wait.first_waits.items()}
        wait_time = _since(wait.began, now) if waited else _ZERO
        return Times(age, wait_time, watch_time, retry_in, waited, wait.longest)

    def _retry_in(self, request: BindRequest, state: RequestState | None, now: float) -> timedelta:
        retry_at = state.attempt.retry_at if state is not None else None
        if retry_at is not None:
            return max(_ZERO, timedelta(seconds=retry_at - now))
        limits, failures = self.settings.binding, request.failed_attempts
        if request.next_attempt is not None:
            return stored_pause(request, self.clock.now(), limits.backoff.max)
        # Another project's CRD does not store nextAttemptTime.
        return backoff(failures, limits, self._jitter()) if failures else _ZERO


def _since(moment: float, now: float) -> timedelta:
    return timedelta(seconds=max(0.0, now - moment))
