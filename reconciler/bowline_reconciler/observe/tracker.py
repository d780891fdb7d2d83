"""Records what reconciles do, what is unfinished, and what plugins raise.

The only observer that the reconciler calls. Nothing here may make a reconcile fail, or change its result.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import ObjectKey
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Done, Status, Transient, Waiting
from bowline.kube.accounting import noting_calls
from bowline.runtime.clock import Clock
from bowline.runtime.logging import add_to_scope, log_scope
from bowline.runtime.workers import ReconcileError
from bowline_reconciler.decide.actions import Action, Wait
from bowline_reconciler.decide.report import Unfinished
from bowline_reconciler.observe.metrics import ReconcilerMetrics
from bowline_reconciler.observe.reconciles import OWN, REPORT_AFTER_S, ReconcileInProgress, UnfinishedRequest

log = logging.getLogger(__name__)

# How often a plugin's error outside an attempt is logged; every one is counted.
LOG_EVERY_S = 60.0
# Between two log lines about failing requests.
LOG_FAILURES_EVERY_S = 30.0


class Observation:
    """Observes every reconcile, and the plugins' calls. One per process."""

    def __init__(self, metrics: ReconcilerMetrics, clock: Clock) -> None:
        self.metrics = metrics
        self.reconciles: dict[ObjectKey, ReconcileInProgress] = {}
        self.unfinished: dict[ObjectKey, UnfinishedRequest] = {}  # the oldest first
        self.waiting: dict[ObjectKey, str] = {}
        self._clock = clock
        self._next_log: dict[tuple[str, str], float] = {}
        self._next_failure_log = float("-inf")
        self._failures_to_log = 0
        self.failing_keys: set[ObjectKey] = set()  # whose last reconcile has failed
        metrics.waits(lambda: Counter(self.waiting.values()))

    # --- reconciles ---

    @contextmanager
    def track(self, key: ObjectKey) -> Iterator[ReconcileInProgress]:
        """Context of one reconcile, whose result it is to get: every log line in it names the request."""
        now = self._clock.monotonic()
        current = self.reconciles[key] = ReconcileInProgress(key, self._clock.now(), now)
        request = self.unfinished.get(key)
        if request is None:
            request = self.unfinished[key] = UnfinishedRequest(now + REPORT_AFTER_S)
        # The reconcile reads what is stored by now: only a report that is still in progress may conflict with it.
        request.versions.clear()
        with log_scope(bindRequest=str(key)), noting_calls(request.calls):
            try:
                yield current
            except Exception as error:
                request.answer = Unfinished("Retrying", _answer(error))
                raise
            finally:
                self.reconciles.pop(key, None)
                self._finish(current, request)

    def on_decision(self, request: BindRequest, decision: Action) -> None:
        """Record the decision; from here on log lines name the attempt."""
        current = self.reconciles.get(request.key)
        if current is None:
            return
        current.decision, current.attempt = type(decision).__name__, request.attempt_id
        add_to_scope(pod=str(request.pod_key), attempt=request.attempt_id)

    def attempt_ended(self, ctx: BindContext, status: Status) -> None:
        """Record an attempt's result."""
        current = self.reconciles.get(ctx.request.key)
        if current is not None:
            total, seconds = self.metrics.attempts_of[status.code]
            total.inc()
            seconds.observe(self._clock.monotonic() - current.since)
            current.outcome = status.code
            # Several plugins that wait together are one wait, attributed to the first.
            current.plugin = (status.waits[0] if isinstance(status, Waiting) else status).plugin
        if not isinstance(status, Done):
            # There may be thousands of transient failures a minute; they are logged in summary elsewhere.
            level = logging.DEBUG if isinstance(status, Transient) else logging.INFO
            fields = {"code": status.code, "plugin": status.plugin, "why": status.message}
            ctx.log.log(level, "attempt ended", extra=fields)

    def on_transient_failure(self, key: ObjectKey, why: str, *, is_quiet: bool) -> None:
        """Record a transient failure; another reconcile follows. ``is_quiet``: the request has had few in a row.

        Thousands of requests may fail at the same time, so the log has one line for all of them.
        """
        current, now = self.reconciles.get(key), self._clock.monotonic()
        if current is not None:
            current.outcome = Transient.code
        fields = {"bindRequest": str(key), "why": why}
        log.debug("a reconcile has failed", extra=fields)
        self._failures_to_log += 1
        self.failing_keys.add(key)
        if not is_quiet and now >= self._next_failure_log:
            counts = {"failures": self._failures_to_log, "requests": len(self.failing_keys)}
            log.warning("reconciles fail, the latest is an example", extra={**counts, **fields})
            self._next_failure_log = now + LOG_FAILURES_EVERY_S
            self._failures_to_log = 0

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of requests whose last reconcile has failed, that wait, and that are unfinished."""
        return {
            "failing": len(self.failing_keys),
            "waiting": len(self.waiting),
            "unfinished": len(self.unfinished),
        }

    # --- plugins: bowline.framework.binding.calls.Observer ---

    def plugin_raised(self, plugin: str, point: str, context: BindContext | None, error: Exception) -> None:
        """Count and log an exception, or a result of a wrong type, of a plugin.

        Functions called outside an attempt, such as ``supported_allocations``, run in every reconcile of every
        request, without a backoff: their errors are logged once a minute per plugin and point.
        """
        self.metrics.plugin_errors.labels(plugin=plugin, point=point).inc()
        if context is None:
            now = self._clock.monotonic()
            if now < self._next_log.get((plugin, point), now):
                return
            self._next_log[plugin, point] = now + LOG_EVERY_S
        logger = context.log if context is not None else log
        logger.error("plugin raised", extra={"plugin": plugin, "point": point}, exc_info=error)

    # --- what is unfinished ---

    async def stored_since(self, request: BindRequest) -> BindRequest | None:
        """Return the request as a report has stored it since that version; None if none has, or its reply is lost.

        A report in progress is awaited, except by itself: what it conflicts with is no report.
        """
        entry = self.unfinished.get(request.key)
        if entry is None:
            return None
        is_unknown = request.resource_version not in entry.versions
        if is_unknown and entry.report is not None and entry.report is not asyncio.current_task():
            await asyncio.wait({entry.report}, timeout=REPORT_AFTER_S)
        newest = None
        while (later := entry.versions.get((newest or request).resource_version)) is not None and later is not newest:
            newest = later
        return newest if newest is not None and newest.uid == request.uid else None

    def restart(self) -> None:
        """The API server is available again after an outage, which no request has caused: count from now on."""
        for entry in self.unfinished.values():
            entry.report_at, entry.answer = self._clock.monotonic() + REPORT_AFTER_S, None

    def clear(self) -> None:
        """Drop what is known of requests: this process is no longer the leader."""
        for entry in self.unfinished.values():
            if entry.report is not None:
                entry.report.cancel()
        self.unfinished.clear()
        self.waiting.clear()
        self.failing_keys.clear()

    # --- the end of a reconcile ---

    def _finish(self, current: ReconcileInProgress, request: UnfinishedRequest) -> None:
        key, result = current.key, current.result
        if result is not None and result.pending:
            until = self._clock.now() + (result.requeue_after or timedelta())
            request.answer = Unfinished("Retrying", result.pending, until=until)
        elif result is not None:
            self.unfinished.pop(key, None)
        if current.outcome != Transient.code:
            self.failing_keys.discard(key)
        has_ended = result is not None and result.requeue_after is None
        is_wait = current.outcome == Waiting.code or current.decision == Wait.__name__
        if is_wait and not has_ended:
            self.waiting[key] = current.plugin or OWN
        elif has_ended or (current.outcome != Transient.code and current.decision):
            self.waiting.pop(key, None)


def _answer(error: Exception) -> str:
    if isinstance(error, ReconcileError):
        return str(error)
    return f"a defect of Bowline, {type(error).__name__}: {error}; the reconciler's log has the rest"
