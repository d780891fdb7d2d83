"""Reports of waits: only of long ones, once per cause, and spread when many begin together."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bowline.api.bindrequest import BindRequest, decode_bind_request
from bowline.api.meta import ObjectKey, ObjectRef
from bowline.kube.availability import Availability
from bowline.testing.builders import bind_request, stored
from bowline.testing.clock import SteppedClock
from bowline_reconciler.decide.actions import GATES, Event, Wait
from bowline_reconciler.decide.snapshot import Snapshot
from bowline_reconciler.drive.reporter import Reporter
from bowline_reconciler.drive.requeue import REPORT_QPS, REPORT_WAIT_AFTER, Requeue, WaitIndex
from bowline_reconciler.drive.state import RequestState
from bowline_reconciler.drive.writer import Writer
from bowline_reconciler.observe import Observation, ReconcilerMetrics

pytestmark = pytest.mark.looptime

BEGAN = timedelta(days=1)
DUE = BEGAN + REPORT_WAIT_AFTER
UNTIL = BEGAN + timedelta(minutes=10)


class RecordingWriter(Writer):
    """Records the names of the requests whose status it would write, and of those with an event."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.evented: list[str] = []

    async def patch_status(self, request: BindRequest, status: Mapping[str, Any]) -> BindRequest:
        self.written.append(request.key.name)
        return request

    def record_event(self, request: BindRequest, event: Event, on_pod: bool = True) -> None:
        self.evented.append(request.key.name)


class Crowd:
    """Requests that wait for their pods' gates; ``others`` are of another namespace."""

    def __init__(self, count: int, jitter: float = 0.0, others: int = 0) -> None:
        total = count + others
        self._clock = SteppedClock()
        self._began = self._clock.monotonic()
        self.writer = RecordingWriter()
        availability = Availability(self._clock)
        observation = Observation(ReconcilerMetrics(CollectorRegistry()), self._clock)
        reporter = Reporter(self.writer, observation.metrics, self._clock)
        self._requeue = Requeue(WaitIndex({}), reporter, observation, availability, self._clock, lambda: jitter)
        bodies = [bind_request(f"r{n}", namespace="default" if n < count else "other") for n in range(total)]
        self._requests = [decode_bind_request(stored(body, uid=f"r{n}")) for n, body in enumerate(bodies)]
        self._memories = [RequestState(request.uid) for request in self._requests]

    async def reconcile(
        self, number: int, now: timedelta, why: str = "gated", poll: timedelta | None = None
    ) -> timedelta | None:
        """One pass at that time; returns when the next is due."""
        elapsed = timedelta(seconds=self._clock.monotonic() - self._began)
        self._clock.step(now - BEGAN - elapsed)
        request = self._requests[number]
        ref = ObjectRef("v1", "Pod", ObjectKey("default", "pod"))
        wait = Wait((ref,), why, UNTIL - now, GATES, {GATES: UNTIL - BEGAN}, poll)
        return (await self._requeue.after_wait(Snapshot(request), self._memories[number], wait)).requeue_after


async def test_a_longer_wait_is_reported_once_per_cause() -> None:
    crowd = Crowd(1)
    await crowd.reconcile(0, BEGAN)
    for seconds, why in enumerate(("gated", "gated", "another", "another", "another", "another", "another")):
        await crowd.reconcile(0, DUE + timedelta(seconds=seconds), why)
    assert crowd.writer.written == crowd.writer.evented == ["r0", "r0"]


async def test_a_message_that_keeps_changing_is_reported_ever_more_rarely() -> None:
    crowd = Crowd(1)
    for second in range(300):
        await crowd.reconcile(0, BEGAN + timedelta(seconds=second), f"message {second}")
    assert crowd.writer.written == ["r0"] * 6, "after 5, 10, 20, 40, 80 and 160 seconds"


async def test_namespaces_take_turns_with_their_reports() -> None:
    crowd = Crowd(100, jitter=1.0, others=1)
    for number in range(100):
        await crowd.reconcile(number, BEGAN)
    assert await crowd.reconcile(100, BEGAN) == REPORT_WAIT_AFTER, "no other namespace delays its first report"
    for number in range(100):
        await crowd.reconcile(number, DUE + timedelta(seconds=5))
    await crowd.reconcile(100, DUE + timedelta(seconds=5))
    await crowd.reconcile(100, DUE + timedelta(seconds=5 + 3 / REPORT_QPS))
    assert crowd.writer.written == ["r0", "r100"]


async def test_many_waits_are_all_reported_at_a_limited_rate() -> None:
    count = 2 * REPORT_QPS + 1
    crowd = Crowd(count)
    for number in range(count):
        await crowd.reconcile(number, BEGAN)
    _, *later = [await crowd.reconcile(number, DUE) for number in range(count)]
    assert crowd.writer.written == ["r0"]
    seconds = [delay.total_seconds() for delay in later if delay is not None]
    assert seconds == pytest.approx([number / REPORT_QPS for number in range(1, count)]), "in order, evenly"
    # Woken by another event before its turn: still not reported, and its turn is unchanged.
    again = await crowd.reconcile(count - 1, DUE + timedelta(seconds=1))
    assert again is not None
    assert again.total_seconds() == pytest.approx(1)
    for number, after in enumerate(seconds, 1):
        await crowd.reconcile(number, DUE + timedelta(seconds=after, microseconds=1))  # durations are rounded
    assert crowd.writer.written == [f"r{number}" for number in range(count)]
