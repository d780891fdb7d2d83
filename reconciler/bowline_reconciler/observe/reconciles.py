"""Records of reconciles in progress, and of unfinished requests. Only ``tracker`` and ``drive.progress`` write them.

A reconcile has one from the moment the queue hands out its key until it is done; a key has one at a time. That of an
unfinished request lasts from its first reconcile until one has a result. The plugins' calls in progress are those of
the ``PluginCaller``.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import ObjectKey, ResourceVersion
from bowline.framework.binding.calls import PluginCall
from bowline.kube.accounting import OpenCall
from bowline.runtime.workers import Result
from bowline_reconciler.decide.report import Unfinished

# Used in place of a plugin's name for the reconciler itself.
OWN = "bowline"
# The step of a reconcile while no plugin is called: it reads, writes, or waits for a rate limiter.
BETWEEN = "reconcile"

# What is unfinished for longer is reported.
REPORT_AFTER_S = 5.0


@dataclass(slots=True)
class ReconcileInProgress:
    """A reconcile in progress. ``result``: None while there is none, and if it has failed."""

    key: ObjectKey
    began: datetime
    since: float
    attempt: str = ""
    decision: str = ""
    outcome: str = ""  # of the reconcile, the code of a Status
    plugin: str = ""  # the plugin that returned the outcome
    result: Result | None = None

    def view(self, calls: Collection[PluginCall], now: float) -> dict[str, Any]:
        """Return the record for the debug page. ``calls``: those in progress, of any request."""
        return {
            "attempt": self.attempt,
            "decision": self.decision,
            "began": self.began,
            "seconds": round(now - self.since, 3),
            "at": [
                {"plugin": call.plugin, "point": call.point, "seconds": round(now - call.since, 3)}
                for call in calls
                if call.key == self.key
            ],
        }


@dataclass(slots=True)
class UnfinishedRequest:
    """An unfinished request, and its reports beside its reconciles. Times are monotonic."""

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


def points_of(reconciles: Iterable[ObjectKey], calls: Iterable[PluginCall]) -> Counter[str]:
    """Return how many of the reconciles are at each extension point, those between plugins at BETWEEN."""
    points: dict[ObjectKey | None, str] = {}
    for call in calls:
        points.setdefault(call.key, call.point)
    return Counter(points.get(key, BETWEEN) for key in reconciles)
