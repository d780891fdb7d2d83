"""Reconciles in progress: which key is at which step of which plugin, since when, and which calls take too long.

One record per reconcile, from the moment the queue hands out the key until it is done; a key has one at a time. Only
``tracker`` writes it. The overdue monitor and the debug page read it meanwhile. The plugins' calls in progress are
those of the ``PluginCaller``. Another record lasts until the request is not unfinished any more (``drive.progress``).

The overdue monitor scans both with each sweep of ``progress``. It only logs: the budgets end a plugin's
call, the client's timeouts end an API call. A threshold is a fraction of the timeout, so that a hanging call can be
inspected. A call is logged again each time its duration has doubled, which bounds the number of log lines. A call
that blocks the event loop is the watchdog's.
"""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import ObjectKey, ObjectUID, ResourceVersion
from bowline.framework.binding.calls import PluginCall
from bowline.kube.accounting import OpenCall
from bowline.runtime.workers import Result
from bowline_reconciler.decide.report import Unfinished

log = logging.getLogger(__name__)

# Used in place of a plugin's name for the reconciler itself.
OWN = "bowline"
# The step of a reconcile while no plugin is called: it reads, writes, or waits for a rate limiter.
BETWEEN = "reconcile"

# What is unfinished for longer is reported.
REPORT_AFTER_S = 5.0
# Between two scans for overdue calls.
SCAN_S = 1.0

# The Runner's timeouts are 60, 60, 5, 10 and 10 s; post_bind should not be noticeable at all. Between plugins a
# reconcile waits for API calls of at most 60 s each, or for a rate limiter.
THRESHOLDS_S: Mapping[str, float] = MappingProxyType(
    {"pre_bind": 20.0, "bind": 10.0, "post_bind": 1.0, "rollback": 5.0, "release": 5.0, BETWEEN: 120.0}
)


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


def is_overdue(point: str, scans: int) -> bool:
    """Return whether to report a call after that many scans: at its threshold, and when they have doubled. Pure."""
    ratio = scans * SCAN_S / THRESHOLDS_S.get(point, math.inf)
    return ratio >= 1 and ratio.is_integer() and int(ratio).bit_count() == 1


class OverdueMonitor:
    """Reports overdue calls in the log. ``reconciles`` and ``calls``: those in progress."""

    def __init__(
        self, reconciles: Mapping[ObjectKey, ReconcileInProgress], calls: Callable[[], Collection[PluginCall]]
    ) -> None:
        self._reconciles = reconciles
        self._calls = calls
        # Scans since the first one of each call in progress. Not a clock: while a process is stopped it calls nobody.
        self._scans: Mapping[PluginCall, int] = {}

    def scan(self) -> None:
        """Check every call in progress once, and every reconcile that is in none. To be called every ``SCAN_S``."""
        calls = self._calls()
        between = self._reconciles.keys() - {call.key for call in calls}
        own = [PluginCall(OWN, BETWEEN, key, ObjectUID(""), self._reconciles[key].since) for key in between]
        self._scans = {call: self._scans.get(call, -1) + 1 for call in (*calls, *own)}
        for call, scans in self._scans.items():
            if is_overdue(call.point, scans):
                self._report(call, scans)

    def _report(self, call: PluginCall, scans: int) -> None:
        current = self._reconciles.get(call.key) if call.key is not None else None
        log.warning(
            "attempt is overdue",
            extra={
                **call.fields,
                "attempt": current.attempt if current is not None else "",
                "plugin": call.plugin,
                "point": call.point,
                "seconds": scans * SCAN_S,
            },
        )
