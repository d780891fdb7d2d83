"""Denies a BindRequest that repeats a decision which has just ended Failed, for a time.

A scheduler without a memory of failures would decide the same in every cycle and keep other pods from the node; a
denied creation makes it decide again in the same cycle. Each replica watches the Failed requests, which are few and
small, and remembers their decisions by namespace and pod. Nothing is read for a review: whether the cause has been
repaired is not known, only time ends a denial. What was deleted before this process has listed it is not known and
allowed: the reconciler decides, as it would without this check. A first decision is never denied. Decision 200.

A caller of the webhook need not be an API server. The denial repeats the failure of a pod, which may name other
objects of its namespace, so only a caller that knows the pod's UID gets it.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from bowline.api import names
from bowline.api.bindrequest import Phase, owner_pod_uid
from bowline.api.failed_decision import Decision, FailedDecision, decision_of
from bowline.api.field_error import FieldError
from bowline.api.meta import Object, ObjectKey, identity_of, parse_time, status_of
from bowline.api.request_facts import reported_status
from bowline.api.rule import Rule
from bowline.kube.client import KubeClient
from bowline.kube.reflector import EventType, Listener, Reflector
from bowline.kube.resources import BINDREQUESTS, Selection
from bowline.runtime.clock import Clock, SystemClock
from bowline_webhook.hooks import Hook, Review

REPEATED: Final = Rule(
    "bindrequest/repeated",
    "a BindRequest repeats a decision that has just failed (`admission.repeatBackoff`)",
)

RULES: Final = (REPEATED,)

# Pods of recent failures that are remembered; more are forgotten, oldest first, and then decided again.
MAX_PODS: Final = 10_000

# The namespace of a request, because any tenant may name any UID; and the UID of its pod.
PodIdentity = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Failure:
    """A pod's last failed decision, and the sentence of its request."""

    decision: FailedDecision
    sentence: str


class Failures:
    """The last failed decisions of pods. ``longest``: the longest time of a denial."""

    def __init__(self, longest: timedelta) -> None:
        self._longest = longest
        self._by_pod: OrderedDict[PodIdentity, Failure] = OrderedDict()

    def add(self, pod_id: PodIdentity, failure: Failure, now: datetime) -> None:
        """Record a failure, as the next one of its pod; one that is recorded already changes nothing.

        Neither does one that denies nothing: it ended too long ago, or by its stored time too far in the future.
        """
        oldest, decision = now - 2 * self._longest, failure.decision
        if not oldest <= decision.last <= now + self._longest:
            return
        earlier = self._by_pod.get(pod_id)
        if earlier is not None:
            is_known = earlier.decision.decision == decision.decision and earlier.decision.last == decision.last
            if is_known or earlier.decision.last > decision.last:
                return
            decision = decision.after(earlier.decision)
        self._by_pod[pod_id] = Failure(decision, failure.sentence)
        self._by_pod.move_to_end(pod_id)
        while len(self._by_pod) > MAX_PODS or next(iter(self._by_pod.values())).decision.last < oldest:
            self._by_pod.popitem(last=False)

    def denial_of(self, pod_id: PodIdentity, decision: Decision, now: datetime) -> FieldError | None:
        """Return the error of a decision for the pod that has failed shortly before ``now``; None for any other."""
        failure = self._by_pod.get(pod_id)
        if failure is None or failure.decision.decision != decision:
            return None
        record, until = failure.decision, failure.decision.denied_until(self._longest)
        # A time in the future is another machine's clock: it denies no longer than the longest backoff.
        if not now < until <= now + 2 * self._longest:
            return None
        message = (
            f"this decision failed {max(0.0, (now - record.last).total_seconds()):.0f} s ago: {failure.sentence}; "
            f"decide for another node, or repeat it in {(until - now).total_seconds():.0f} s"
        )
        return FieldError(REPEATED, "spec.selectedNode", decision.node, message)


class RepeatGuard:
    """Checks BindRequests that are being created. ``longest``: the longest backoff; with zero it is not run."""

    def __init__(self, longest: timedelta, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._failures = Failures(longest)

    def errors(self, hook: Hook, review: Review) -> tuple[FieldError, ...]:
        """Return the error of a repeated decision; none for any other review."""
        is_creation = hook.object_kind == (names.GROUP, names.KIND) and review.operation == "CREATE"
        pod_uid = _pod_uid(review.object) if is_creation else ""
        if not pod_uid:
            return ()
        pod_id, decision = (review.namespace, pod_uid), decision_of(review.object.get("spec"))
        error = self._failures.denial_of(pod_id, decision, self._clock.now())
        return () if error is None else (error,)

    async def run(self, client: KubeClient) -> None:
        """Watch until cancelled."""
        await Reflector(
            client,
            Selection(BINDREQUESTS, field_selector=f"status.phase={Phase.FAILED.value}"),
            listener=Listener(self._on_event),
            transform=self._transform,
            fallback=True,
        ).run()

    def _transform(self, request: dict[str, Any]) -> Object | None:
        """Transform: keep identity, pod UID and failure of a Failed request."""
        if status_of(request).get("phase") != Phase.FAILED.value:
            return None
        return {
            "metadata": identity_of(request),
            "podUID": _pod_uid(request),
            "failure": failure_of(request, self._clock.now()),
        }

    def _on_event(self, _: EventType, key: ObjectKey, __: Object | None, new: Object | None) -> None:
        if new is not None and new["podUID"]:
            self._failures.add((key.namespace, new["podUID"]), new["failure"], self._clock.now())


def failure_of(request: Object, now: datetime) -> Failure:
    """Return the failure of a Failed request.

    One that does not say when it ended has ended when it was created, so that each event of it has the same time.
    ``now``: if it says neither.
    """
    status = reported_status(request)
    sentence = str(status.get("reason") or "")
    times = (status.get("completionTime"), request["metadata"].get("creationTimestamp"))
    end = next((moment for moment in map(parse_time, times) if moment is not None), now)
    reason = sentence.partition(":")[0]
    return Failure(FailedDecision(decision_of(request.get("spec")), reason, end, end), sentence)


def _pod_uid(request: Object) -> str:
    spec = request.get("spec")
    uid = spec.get("podUID") if isinstance(spec, Mapping) else None
    return uid if isinstance(uid, str) and uid else str(owner_pod_uid(request) or "")
