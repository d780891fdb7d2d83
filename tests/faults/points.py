"""The points at which a run can be disturbed: counted in the requests of the undisturbed run, never listed by hand.

The requests of one run are for its namespace, the reservation namespace and cluster-scoped objects. Only one run is
active at a time, so all of them are its own; the name of a run's own volumes begins with its namespace, which is
replaced in each run.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from http import HTTPStatus

from bowline.api import names
from bowline.kube.resources import SELF_SUBJECT_REVIEWS
from bowline.testing.fault_proxy.calls import ProxiedCall
from bowline.testing.fault_proxy.record import Exchange
from bowline.testing.fault_proxy.rules import CallMatch

RESERVATIONS = names.RESERVATION_APP
# In a point, replaces the namespace of the run.
_RUN = "{run}"


class Mode(Enum):
    """A way of disturbing."""

    BEFORE_REPLY = "killed before the reply"
    READ = "killed while reading"
    AFTER_REPLY = "killed after the reply"
    LOST_REPLY = "reply lost"
    OVERLAP = "overtaken by another leader"


@dataclass(frozen=True, slots=True)
class Point:
    """The nth request of its kind, and how it is disturbed."""

    mode: Mode
    match: CallMatch
    nth: int

    def __str__(self) -> str:
        path = "/".join(filter(None, (self.match.resource, self.match.subresource)))
        return f"{self.mode.value}: {self.match.verbs[0]} {path} #{self.nth}"

    def within(self, namespace: str) -> CallMatch:
        """The requests that are counted in one run."""
        return _within(self.match, namespace)


def points_of(exchanges: Sequence[Exchange], namespace: str, modes: Sequence[Mode]) -> list[Point]:
    """Return the points of a run that has sent these requests."""
    points = []
    for index, exchange in enumerate(exchanges):
        call = exchange.call
        if not _is_of_run(call, namespace):
            continue
        match = _within(_kind(call, namespace), namespace)
        nth = sum(match.covers(earlier.call) for earlier in exchanges[: index + 1])
        applicable = [mode for mode in modes if call.writes is not (mode is Mode.READ)]
        points += [Point(mode, _kind(call, namespace), nth) for mode in applicable]
    return points


def last_of_each(points: Sequence[Point]) -> list[Point]:
    """Return, of points that differ in their number alone, the last one."""
    return list({(point.mode, point.match): point for point in points}.values())


def is_certain(point: Point) -> bool:
    """Return whether every run sends the request of the point, as opposed to reads and best-effort writes."""
    return point.mode is not Mode.READ and (point.match.resource, point.match.subresource) != ("pods", "status")


def is_steady(exchanges: Sequence[Exchange]) -> bool:
    """Return whether one leader has sent the requests and none has failed in the API server: no term starts here."""
    starts = any(exchange.call.resource == SELF_SUBJECT_REVIEWS.plural for exchange in exchanges)
    return not starts and all(
        exchange.code is not None and exchange.code < HTTPStatus.INTERNAL_SERVER_ERROR for exchange in exchanges
    )


def all_of_run(namespace: str) -> list[CallMatch]:
    """Return the matches for all requests that a run may send next."""
    everywhere = ("persistentvolumes", "nodes")
    return [
        CallMatch(namespace=namespace),
        CallMatch(namespace=RESERVATIONS),
        *(CallMatch(resource=resource) for resource in everywhere),
    ]


def _within(match: CallMatch, namespace: str) -> CallMatch:
    where, name = (field.replace(_RUN, namespace) for field in (match.namespace, match.name))
    return replace(match, namespace=where, name=name)


def _is_of_run(call: ProxiedCall, namespace: str) -> bool:
    return bool(call.resource) and call.verb != "watch" and call.namespace in ("", namespace, RESERVATIONS)


def _kind(call: ProxiedCall, namespace: str) -> CallMatch:
    """Return the requests of the same kind: by name only where no namespace separates runs."""
    where = _RUN if call.namespace == namespace else call.namespace
    name = "" if call.namespace else call.name.replace(namespace, _RUN)
    return CallMatch((call.verb,), call.resource, call.subresource, where, name)
