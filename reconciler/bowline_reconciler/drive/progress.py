"""What is unfinished, and its report: in status and event five seconds after it was taken up, whatever has happened.

A request is *unfinished* from its first reconcile until one returns a result: while calls are in progress, which may
hang, and while reconciles fail, whatever the answer was (429, 5xx, a missing right, a defect). The clock reports, and
not the failure: one sweep a second looks at what is unfinished, so that a bind that takes less time pays nothing. The
report names the call in progress, or the last answer. It counts no attempt. It is a write as any other client's: a
reconcile whose own write meets its version is repeated from there. Each report comes after a longer pause, so that no
request is repeated for ever. What a reconcile itself reports, such as a wait or a failed attempt, is left out.
Decision 315.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from bowline.api.meta import ObjectKey
from bowline.framework.binding.calls import PluginCall, PluginCaller
from bowline.kube.accounting import OpenCall
from bowline.kube.availability import Availability
from bowline.kube.errors import InfrastructureError, KubeError
from bowline.runtime.clock import Clock
from bowline.runtime.workers import DONE, Result, run_workers
from bowline.runtime.workqueue import WorkQueue
from bowline_reconciler.decide.report import Unfinished
from bowline_reconciler.drive.reporter import Reporter
from bowline_reconciler.drive.requeue import Requeue, report_pause
from bowline_reconciler.drive.state import REPORT_AFTER_S, Progress, RequestStates
from bowline_reconciler.observe import BETWEEN
from bowline_reconciler.watch.request_cache import RequestCache

log = logging.getLogger(__name__)

# Between two sweeps.
SCAN_S = 1.0
# Reports are written beside each other: those that hang leave room for others.
WORKERS = 8


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


def points_of(states: RequestStates, calls: Iterable[PluginCall]) -> Counter[str]:
    """Return how many reconciles are at each extension point, those between plugins at BETWEEN."""
    points: dict[ObjectKey | None, str] = {}
    for call in calls:
        points.setdefault(call.key, call.point)
    stages = ((key, state.stage) for key, state in states.items())
    running = (key for key, stage in stages if isinstance(stage, Progress) and stage.since is not None)
    return Counter(points.get(key, BETWEEN) for key in running)


@dataclass(frozen=True, slots=True)
class ProgressReports:
    """Reports what is unfinished. ``caller`` has the plugins' calls in progress, of any request."""

    states: RequestStates
    requests: RequestCache
    reporter: Reporter
    requeue: Requeue
    availability: Availability
    caller: PluginCaller
    clock: Clock
    queue: WorkQueue[ObjectKey] = field(
        default_factory=lambda: WorkQueue(group=lambda key: key.namespace, workers=WORKERS, is_open=False)
    )

    async def run(self) -> None:
        """Scan and report until cancelled. Raises what has failed."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run_workers(self.queue, self._report, self._on_error))
            while True:
                await asyncio.sleep(SCAN_S)
                self.scan()

    def scan(self) -> None:
        """Queue the reports that are due, in turn."""
        now = self.clock.monotonic()
        if not self.availability.available:
            return
        stages = [(key, state.stage) for key, state in self.states.items()]
        due = [(key, stage) for key, stage in stages if isinstance(stage, Progress) and stage.is_due(now)]
        if not due:
            return
        calls: Mapping[ObjectKey | None, list[PluginCall]] = defaultdict(list)
        for call in self.caller.in_progress:
            calls[call.key].append(call)
        for key, entry in due:
            cause = unfinished_by(calls[key], entry.calls, entry.answer, now)
            # In turn with the reports of waits.
            if cause.why != entry.last_report and not self.requeue.report_turns.reserve(key, key.namespace, now):
                entry.cause = cause
                self.queue.add(key)

    async def _report(self, key: ObjectKey) -> Result:
        """Report one request. A report that fails is repeated after a pause, and concerns no one else.

        While the former request of its name ends, the present one has the report: it waits for that.
        """
        state = self.states.get(key)
        entry = state.stage if state is not None else None
        if state is None or not isinstance(entry, Progress) or entry.cause is None:
            return DONE
        why, request, cause = "", self.requests.get(key), entry.cause
        try:
            if request is not None:
                # In an outage all calls fail, and none is the request's own: then no event without a stored status.
                is_isolated = self.clock.monotonic() - self.availability.last_success <= REPORT_AFTER_S
                await self.reporter.unfinished(request, state, cause, is_isolated=is_isolated)
            why = cause.why
        except InfrastructureError as error:
            log.debug("a report has failed", extra={"bindRequest": str(key), "error": str(error)})
        except KubeError as error:
            log.info("a report is not stored", extra={"bindRequest": str(key), "error": str(error)})
        finally:
            # Empty if nothing was reported. Another cause is reported after a pause that grows.
            entry.cause, entry.last_report, entry.reports = None, why, entry.reports + 1
            entry.report_at = self.clock.monotonic() + report_pause(entry.reports).total_seconds()
        return DONE

    def _on_error(self, key: ObjectKey) -> None:
        log.exception("a report has failed", extra={"bindRequest": str(key)})
