"""Records what reconciles do, and what plugins raise.

The only observer that the reconciler calls. Nothing here may make a reconcile fail, block it, or change its result.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import ObjectKey
from bowline.framework.binding.context import BindContext
from bowline.framework.plugin_status import Done, Status, Transient, Waiting
from bowline.runtime.clock import Clock
from bowline.runtime.logging import add_to_scope, log_scope
from bowline_reconciler.decide.actions import Action, Wait
from bowline_reconciler.observe.metrics import ReconcilerMetrics
from bowline_reconciler.observe.reconciles import OWN, ReconcileInProgress

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
        self.waiting: dict[ObjectKey, str] = {}
        self._clock = clock
        self._next_log: dict[tuple[str, str], float] = {}
        self._next_failure_log = float("-inf")
        self._failures_to_log = 0
        self.failing_keys: set[ObjectKey] = set()  # whose last reconcile has failed
        metrics.waits(lambda: Counter(self.waiting.values()))

    # --- reconciles ---

    @contextmanager
    def track(self, key: ObjectKey) -> Iterator[None]:
        """Context of one reconcile: every log line in it names the request."""
        current = self.reconciles[key] = ReconcileInProgress(key, self._clock.now(), self._clock.monotonic())
        with log_scope(bindRequest=str(key)):
            try:
                yield
            finally:
                self.reconciles.pop(key, None)
                self._finish(current)

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

    def on_defect(self) -> None:
        """Count a reconcile that a defect of Bowline itself has ended."""
        self.metrics.reconcile_errors.inc()

    @property
    def sizes(self) -> dict[str, int]:
        """The numbers of requests whose last reconcile has failed, and of those that wait."""
        return {"failing": len(self.failing_keys), "waiting": len(self.waiting)}

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

    def on_end(self, key: ObjectKey) -> None:
        """A request no longer exists or needs nothing more."""
        current = self.reconciles.get(key)
        if current is not None:
            current.has_ended = True

    def clear(self) -> None:
        """Drop what is known of requests: this process is no longer the leader."""
        self.waiting.clear()
        self.failing_keys.clear()

    # --- the end of a reconcile ---

    def _finish(self, current: ReconcileInProgress) -> None:
        if current.outcome != Transient.code:
            self.failing_keys.discard(current.key)
        is_wait = current.outcome == Waiting.code or current.decision == Wait.__name__
        if is_wait and not current.has_ended:
            self.waiting[current.key] = current.plugin or OWN
        elif current.has_ended or (current.outcome != Transient.code and current.decision):
            self.waiting.pop(current.key, None)
