"""What is unfinished, and its report: in status and event five seconds after it was taken up, whatever has happened.

A request is *unfinished* from its first reconcile until one returns a result: while calls are in progress, which may
hang, and while reconciles fail, whatever the answer was (429, 5xx, a missing right, a defect). The clock reports, and
not the failure: one sweep a second looks at what is unfinished, so that a bind that takes less time pays nothing. The
report names the call in progress, or the last answer. It counts no attempt, and it delays no reconcile: its write is
guarded by the request's version, and a reconcile whose own write meets the new version goes on from that one
(``stored_since``). What a reconcile itself reports, such as a wait or a failed attempt, is left out. Decision 315.

The same sweep scans the plugins' calls for those that are overdue (``observe.reconciles``).
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import ObjectKey, ResourceVersion
from bowline.framework.binding.calls import PluginCall
from bowline.kube.accounting import OpenCall, noting_calls
from bowline.kube.availability import Availability
from bowline.kube.errors import InfrastructureError, KubeError
from bowline.runtime.clock import Clock
from bowline.runtime.workers import ReconcileError, Result
from bowline_reconciler.decide.report import Unfinished
from bowline_reconciler.drive.reads import Reads
from bowline_reconciler.drive.reporter import Reporter
from bowline_reconciler.drive.requeue import Requeue, report_pause
from bowline_reconciler.drive.state import RequestState, RequestStates
from bowline_reconciler.observe.reconciles import SCAN_S, OverdueMonitor

log = logging.getLogger(__name__)

REPORT_AFTER_S = 5.0
# Reports in progress, in all and of one namespace: writes that hang leave room for others.
_MAX_REPORTS, _MAX_OF_NAMESPACE = 32, 8


def unfinished_by(
    calls: Collection[PluginCall], open_calls: Collection[OpenCall], answer: Unfinished | None, now: float
) -> Unfinished:
    """Return why a request is unfinished: a call that hangs, else the last answer, else the calls in progress. Pure.

    ``calls`` of plugins and ``open_calls`` of the API server: in progress for the request. ``answer``: of its last
    reconcile. ``now``: monotonic.
    """
    oldest = min([now, *(call.since for call in calls), *(call.since for call in open_calls)])
    if answer is not None and now - oldest < REPORT_AFTER_S:
        return answer
    points = ", ".join(dict.fromkeys(f"plugin {call.plugin}, {call.point}" for call in calls))
    texts = ", ".join(dict.fromkeys(open_call.call.text for open_call in open_calls))
    missing = f"no reply of the API server yet to {texts}" if texts else "the call has not ended yet"
    why = f"{points}: {missing}" if points else missing if texts else "the reconcile has not ended yet"
    return Unfinished("Working", why, timedelta(seconds=now - oldest))


@dataclass(slots=True)
class UnfinishedRequest:
    """An unfinished request. Times are monotonic."""

    since: float
    report_at: float
    answer: Unfinished | None = None  # of its last reconcile
    calls: list[OpenCall] = field(default_factory=list)
    last_report: str = ""
    reports: int = 0
    report: "asyncio.Task[None] | None" = None  # in progress
    # What reports have stored, by the version before.
    versions: dict[ResourceVersion, BindRequest] = field(default_factory=dict)

    def is_due(self, now: float) -> bool:
        """Return whether a report may begin."""
        return now >= self.report_at and (self.report is None or self.report.done())

    def restart(self, now: float) -> None:
        """Count from now on."""
        self.since, self.report_at, self.answer = now, now + REPORT_AFTER_S, None

    def end_report(self, why: str, now: float) -> None:
        """Record what was reported, empty if nothing was; another cause is reported after a pause that grows."""
        self.last_report, self.reports = why, self.reports + 1
        self.report_at = now + report_pause(self.reports).total_seconds()


class UnfinishedWork:
    """The unfinished requests of this process, by key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._by_key: dict[ObjectKey, UnfinishedRequest] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def items(self) -> Sequence[tuple[ObjectKey, UnfinishedRequest]]:
        """Return all, the oldest first."""
        return list(self._by_key.items())

    @contextmanager
    def reconciling(self, key: ObjectKey) -> Iterator[Callable[[Result], None]]:
        """Context of one reconcile; the function that it yields gets the result. Without one, it has failed."""
        now = self._clock.monotonic()
        work = self._by_key.get(key)
        if work is None:
            work = self._by_key[key] = UnfinishedRequest(now, now + REPORT_AFTER_S)
        # The reconcile reads what is stored by now: only a report that is still in progress may conflict with it.
        work.versions.clear()
        try:
            with noting_calls(work.calls):
                yield lambda result: self._end(key, work, result)
        except Exception as error:
            work.answer = Unfinished("Retrying", _answer(error))
            raise

    def _end(self, key: ObjectKey, work: UnfinishedRequest, result: Result) -> None:
        if not result.pending:
            self._by_key.pop(key, None)
            return
        until = self._clock.now() + (result.requeue_after or timedelta())
        work.answer = Unfinished("Retrying", result.pending, until=until)

    async def stored_since(self, request: BindRequest) -> BindRequest | None:
        """Return the request as a report has stored it since that version; None if none has, or its reply is lost.

        A report in progress is awaited, except by itself: what it conflicts with is no report.
        """
        work = self._by_key.get(request.key)
        if work is None:
            return None
        is_unknown = request.resource_version not in work.versions
        if is_unknown and work.report is not None and work.report is not asyncio.current_task():
            await asyncio.wait({work.report}, timeout=REPORT_AFTER_S)
        newest = None
        while (later := work.versions.get((newest or request).resource_version)) is not None and later is not newest:
            newest = later
        return newest if newest is not None and newest.uid == request.uid else None

    def restart(self) -> None:
        """The API server is available again after an outage, which no request has caused: count from now on."""
        for work in self._by_key.values():
            work.restart(self._clock.monotonic())

    def clear(self) -> None:
        """Drop everything: this process is no longer the leader."""
        for work in self._by_key.values():
            if work.report is not None:
                work.report.cancel()
        self._by_key.clear()


def _answer(error: Exception) -> str:
    if isinstance(error, ReconcileError):
        return str(error)
    return f"a defect of Bowline, {type(error).__name__}: {error}; the reconciler's log has the rest"


@dataclass(frozen=True, slots=True)
class ProgressReports:
    """Reports what is unfinished; ``calls`` returns the plugins' calls in progress, of any request."""

    work: UnfinishedWork
    states: RequestStates
    reads: Reads
    reporter: Reporter
    requeue: Requeue
    availability: Availability
    calls: Callable[[], Collection[PluginCall]]
    overdue: OverdueMonitor
    clock: Clock
    tasks: dict["asyncio.Task[None]", str] = field(default_factory=dict)  # reports in progress, with the namespace

    async def run(self) -> None:
        """Scan until cancelled; then nothing is reported any more."""
        try:
            while True:
                await asyncio.sleep(SCAN_S)
                self.scan()
        finally:
            for task in self.tasks:
                task.cancel()
            await asyncio.gather(*self.tasks, return_exceptions=True)

    def scan(self) -> None:
        """Log the calls that are overdue, and begin the reports that are due, in turn."""
        self.overdue.scan()
        now = self.clock.monotonic()
        if not self.availability.available:
            return
        due = [(key, work) for key, work in self.work.items() if work.is_due(now)]
        if not due:
            return
        calls: Mapping[ObjectKey | None, list[PluginCall]] = defaultdict(list)
        for call in self.calls():
            calls[call.key].append(call)
        counts = Counter(self.tasks.values())
        for key, work in due:
            state = self.states.get(key)
            cause = unfinished_by(calls[key], work.calls, work.answer, now)
            if state is None or cause.why == work.last_report:
                continue
            if counts.total() >= _MAX_REPORTS or counts[key.namespace] >= _MAX_OF_NAMESPACE:
                continue
            if self.requeue.report_turns.reserve(key, key.namespace, now):
                continue  # in turn with the reports of waits
            counts[key.namespace] += 1
            task = asyncio.create_task(self._report(key, work, state, cause), name=f"report of {key}")
            self.tasks[task] = key.namespace
            task.add_done_callback(self.tasks.pop)
            work.report = task

    async def _report(self, key: ObjectKey, work: UnfinishedRequest, state: RequestState, cause: Unfinished) -> None:
        """Report one request. A report that fails is repeated after a pause, and concerns no one else."""
        why, request = "", self.reads.latest(key, state) if self.states.get(key) is state else None
        try:
            if request is not None:
                # In an outage all calls fail, and none is the request's own: then no event without a stored status.
                is_isolated = self.clock.monotonic() - self.availability.last_success <= REPORT_AFTER_S
                work.versions[request.resource_version] = await self.reporter.unfinished(
                    request, state, cause, is_isolated=is_isolated
                )
            why = cause.why
        except InfrastructureError as error:
            log.debug("a report has failed", extra={"bindRequest": str(key), "error": str(error)})
        except KubeError as error:
            log.info("a report is not stored", extra={"bindRequest": str(key), "error": str(error)})
        except Exception:
            log.exception("a report has failed", extra={"bindRequest": str(key)})
        finally:
            work.end_report(why, self.clock.monotonic())
