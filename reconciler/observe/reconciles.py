"""Reconciles in progress, as data: which key is at which step of which plugin, and since when.

One record per reconcile, from the moment the queue hands out the key until it is done. Metrics, the overdue monitor
and the debug pages read it; afterwards the history keeps a summary. A key has one reconcile at a time.
"""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from shared.api.meta import ObjectKey

# Used in place of a plugin's name for the reconciler itself.
OWN = "bowline"
# The step of a reconcile while no plugin is called: it reads, writes, or waits for a rate limiter.
BETWEEN = "reconcile"


@dataclass(frozen=True, slots=True)
class Step:
    """A finished call of a plugin; ``after_ms`` is its start, relative to the start of the reconcile."""

    plugin: str
    point: str
    code: str
    why: str
    after_ms: float
    ms: float


@dataclass(slots=True)
class CallInProgress:
    """A plugin's call in progress, and how often it was reported as overdue."""

    plugin: str
    point: str
    since: float
    reports: int = 0


@dataclass(slots=True)
class ReconcileInProgress:
    """A reconcile in progress: its decision and its steps so far."""

    key: ObjectKey
    began: datetime
    since: float
    attempt: str = ""
    decision: str = ""
    outcome: str = ""  # of the attempt, a Code
    why: str = ""
    plugin: str = ""  # the plugin that returned the outcome
    trace: str = ""  # the traceparent that admission began, if any
    forgotten: bool = False  # the request needs nothing more
    calls: list[CallInProgress] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    reports: int = 0

    @property
    def at(self) -> str:
        """The extension point that the reconcile is at."""
        return self.calls[0].point if self.calls else BETWEEN

    def view(self, now: float) -> dict[str, Any]:
        """Return the record for the debug pages."""
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
