"""A pass over a request as a span: named after the attempt, with its plugins' calls as children."""

from datetime import timedelta

from reconciler.decide.decide import Attempt
from reconciler.observe.passes import Pass, Step
from reconciler.observe.traces import attempt_span
from shared.api.meta import ObjectKey
from shared.framework.status import Status
from shared.runtime.tracing import Span, Tracer
from shared.testing.clock import START
from tests.unit.reconciler.watching import Watched, context


class Kept(Tracer):
    """Records the spans."""

    def __init__(self) -> None:
        self.spans: list[tuple[Span, str]] = []

    def record(self, span: Span, parent: str = "") -> str:
        self.spans.append((span, parent))
        return ""


def test_times_codes_and_faults_of_plugins_are_within_the_attempt() -> None:
    over = Pass(ObjectKey("team-a", "train"), START, 0.0, "uid-1", "Attempt", "RETRY", "no room")
    over.steps += [
        Step("volumes", "pre_bind", "OK", "", 1.0, 2.0),
        Step("devices", "pre_bind", "RETRY", "no room", 3.0, 4.0),
    ]
    span = attempt_span(over, 0.009)
    assert (span.name, span.ended - span.began, span.error) == ("attempt", timedelta(milliseconds=9), "no room")
    assert span.attributes["bowline.attempt"] == "uid-1"
    assert [(part.name, part.error) for part in span.parts] == [
        ("volumes.pre_bind", ""),
        ("devices.pre_bind", "no room"),
    ]
    assert (span.parts[1].began, span.parts[1].ended) == (
        START + timedelta(milliseconds=3),
        START + timedelta(milliseconds=7),
    )


def test_a_wait_is_no_error() -> None:
    over = Pass(ObjectKey("team-a", "train"), START, 0.0, "uid-1", "Attempt", "WAIT", "claim is pending")
    over.steps.append(Step("volumes", "pre_bind", "WAIT", "claim is pending", 0.0, 1.0))
    span = attempt_span(over, 0.001)
    assert (span.error, span.parts[0].error) == ("", "")


def test_passes_that_called_plugins_are_traced_in_their_requests_trace() -> None:
    c, tracer = context(), Kept()
    watched = Watched(tracer)
    c.request.raw["metadata"]["annotations"] = {"bowline.dev/traceparent": "from admission"}
    for called in (True, False):
        with watched.observation.track(c.request.key):
            watched.observation.on_decision(c.request, Attempt())
            if called:
                watched.observation.call_began("binder", "bind", c)
                watched.observation.call_ended("binder", "bind", c, Status.ok(), 0.001)
    ((span, parent),) = tracer.spans
    assert (span.parts[0].name, parent) == ("binder.bind", "from admission")
