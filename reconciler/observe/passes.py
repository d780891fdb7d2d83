"""Passes under way, as data: who is at which step of which plugin, and since when.

One record per pass, alive from the queue's handing out a key until it is done. Metrics, the overdue monitor and the
debug pages read it; when the pass is over the journal keeps what is left of it. A key has one pass at a time.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shared.api.bindrequest import BindRequest
from shared.api.meta import ObjectKey

# Stands where a plugin's name stands, for what the reconciler itself does.
OWN = "bowline"
# Where a pass is while no plugin is called: it looks, writes, or waits for a limiter.
BETWEEN = "pass"


@dataclass(frozen=True, slots=True)
class Step:
    """A plugin's call that is over; ``after_ms`` is when it began, from the beginning of the pass."""

    plugin: str
    point: str
    code: str
    why: str
    after_ms: float
    ms: float


@dataclass(slots=True)
class Call:
    """A plugin's call under way. ``told`` counts how often it was said to be overdue."""

    plugin: str
    point: str
    since: float
    told: int = 0


@dataclass(slots=True)
class Pass:
    """A pass under way: what it has decided and done so far."""

    key: ObjectKey
    began: datetime
    since: float
    attempt: str = ""
    decision: str = ""
    outcome: str = ""  # of the attempt, a Code
    why: str = ""
    plugin: str = ""  # whose answer the outcome is
    trace: str = ""  # the one that admission began, if any
    let_go: bool = False  # nothing is to come of the request
    calls: list[Call] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    told: int = 0

    @property
    def at(self) -> str:
        """The extension point the pass is at."""
        return self.calls[0].point if self.calls else BETWEEN

    def view(self, now: float) -> dict[str, Any]:
        """Return what the debug pages show."""
        return {
            "attempt": self.attempt,
            "decision": self.decision,
            "began": self.began,
            "seconds": round(now - self.since, 3),
            "at": [
                {"plugin": call.plugin, "point": call.point, "seconds": round(now - call.since, 3)}
                for call in self.calls
            ],
            "done": [f"{step.plugin}.{step.point}: {step.code}" for step in self.steps],
        }


def attempt_id(request: BindRequest) -> str:
    """Return what names an attempt on every log line: the request, whatever its name, and which attempt of it."""
    return f"{request.uid[:8]}-{request.failed_attempts + 1}"
