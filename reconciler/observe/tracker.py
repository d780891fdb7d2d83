"""What passes and plugins do, told to whoever wants to know: metrics, log, journal, overdue monitor, traces.

The one place that the working code talks to: it says what happens, here is who hears of it. Nothing in here may
fail a pass, wait, or change what is done.
"""

import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from reconciler.decide.decide import Decision, Fail, Requeue, RollBack, Wait
from reconciler.observe.history import MAX_WHY, Journal
from reconciler.observe.metrics import ReconcilerMetrics
from reconciler.observe.overdue import OverdueMonitor
from reconciler.observe.passes import OWN, Call, Pass, Step, attempt_id
from reconciler.observe.traces import attempt_span, traceparent
from shared.api.bindrequest import BindRequest
from shared.api.meta import ObjectKey
from shared.framework.binding.context import BindContext
from shared.framework.status import Code, Status
from shared.runtime.clock import Clock
from shared.runtime.logging import add_to_scope, log_scope
from shared.runtime.tracing import Tracer

log = logging.getLogger(__name__)

# How often an error of a plugin is logged that belongs to no attempt; it is counted each time.
LOG_EVERY_S = 60.0


class Observation:
    """Hears of every pass and is the Runner's Observer. One per process."""

    def __init__(self, metrics: ReconcilerMetrics, clock: Clock) -> None:
        self.metrics = metrics
        self.journal = Journal()
        self.passes: dict[ObjectKey, Pass] = {}
        self.waiting: dict[ObjectKey, str] = {}
        self.overdue = OverdueMonitor(self.passes, metrics.overdue, clock)
        self._clock = clock
        self._next_log: dict[tuple[str, str], float] = {}
        self.tracer: Tracer | None = None  # given by a process that is asked for traces
        metrics.in_flight(lambda: Counter(current.at for current in self.passes.values()))
        metrics.waits(lambda: Counter(self.waiting.values()))

    # --- passes ---

    @contextmanager
    def passing(self, key: ObjectKey) -> Iterator[None]:
        """Surround a pass: whatever is logged in it names the request."""
        current = self.passes[key] = Pass(key, self._clock.now(), self._clock.monotonic())
        with log_scope(bindRequest=str(key)):
            try:
                yield
            finally:
                self.passes.pop(key, None)
                self._over(current)

    def decided(self, request: BindRequest, decision: Decision) -> None:
        """The pass knows what to do; from here on its lines in the log name the attempt."""
        current = self.passes.get(request.key)
        if current is None:
            return
        current.attempt = attempt_id(request)
        current.decision = type(decision).__name__
        current.why = _why(decision)
        if isinstance(decision, Wait):
            current.plugin = OWN
        if self.tracer is not None:
            current.trace = traceparent(request)
        add_to_scope(pod=str(request.pod_key), attempt=current.attempt)

    def attempt_ended(self, c: BindContext, status: Status) -> None:
        """The attempt has come to its end, whatever that is."""
        current = self.passes.get(c.request.key)
        if current is not None:
            self.metrics.attempt(status.code.value, self._clock.monotonic() - current.since)
            current.outcome, current.why, current.plugin = status.code.value, status.message, status.plugin
        if status.code is not Code.OK:
            # Of transient failures there may be thousands a minute, and they are logged together.
            level = logging.DEBUG if status.code is Code.INFRA else logging.INFO
            c.log.log(
                level,
                "attempt ended",
                extra={"code": status.code.value, "plugin": status.plugin, "why": status.message},
            )

    def troubled(self, key: ObjectKey, why: str) -> None:
        """The pass has come to nothing, through nobody's fault; another one follows."""
        current = self.passes.get(key)
        if current is not None:
            current.outcome, current.why = Code.INFRA.value, why

    # --- plugins: shared.framework.binding.runner.Observer ---

    def call_began(self, plugin: str, point: str, c: BindContext) -> None:
        """One call begins."""
        current = self.passes.get(c.request.key)
        if current is not None:
            current.calls.append(Call(plugin, point, self._clock.monotonic()))

    def call_ended(self, plugin: str, point: str, c: BindContext, status: Status, seconds: float) -> None:
        """One call is over."""
        self.metrics.call(plugin, point, status.code.value, seconds)
        current = self.passes.get(c.request.key)
        if current is None:
            return
        for call in current.calls:
            if call.plugin == plugin and call.point == point:
                self.overdue.ended(current, call)
                current.calls.remove(call)
                after_ms = round((call.since - current.since) * 1000, 3)
                current.steps.append(
                    Step(
                        plugin, point, status.code.value, status.message[:MAX_WHY], after_ms, round(seconds * 1000, 3)
                    )
                )
                return

    def plugin_raised(self, plugin: str, point: str, context: BindContext | None, error: Exception) -> None:
        """A plugin raised, or gave an answer of a wrong type: count it, and log it with its traceback.

        What belongs to no attempt, such as ``serves``, is called for every request on every pass, without a backoff:
        its errors are logged once a minute for each plugin and point.
        """
        self.metrics.plugin_errors.labels(plugin=plugin, point=point).inc()
        if context is None:
            now = self._clock.monotonic()
            if now < self._next_log.get((plugin, point), now):
                return
            self._next_log[plugin, point] = now + LOG_EVERY_S
        logger = context.log if context is not None else log
        logger.error("plugin raised", extra={"plugin": plugin, "point": point}, exc_info=error)

    def forgotten(self, key: ObjectKey) -> None:
        """A request has left the system."""
        self.waiting.pop(key, None)
        current = self.passes.get(key)
        if current is not None:
            current.let_go = True

    # --- the end of a pass ---

    def _over(self, current: Pass) -> None:
        if current.let_go:
            pass  # a wait that has ended with its request
        elif current.outcome == Code.WAIT.value or current.decision == Wait.__name__:
            # Several plugins that wait together are one wait; the first is named.
            self.waiting[current.key] = current.plugin.partition(",")[0] or OWN
        elif current.outcome != Code.INFRA.value and current.decision:
            self.waiting.pop(current.key, None)
        seconds = self._clock.monotonic() - current.since
        self.journal.add(current, seconds)
        if self.tracer is not None and current.steps:
            self.tracer.record(attempt_span(current, seconds), current.trace)


def _why(decision: Decision) -> str:
    match decision:
        case Fail():
            return f"{decision.reason.value}: {decision.message}"
        case Wait() | RollBack() | Requeue():
            return decision.why
        case _:
            return ""
