"""Which request gets which fault: the first matching rule that is due decides.

``nth`` counts the requests that a rule's match covers, whether or not an earlier rule applied to them. ``chance``
uses a seeded generator, so that a run can be repeated as far as the order of requests is the same.
"""

import random
import threading
from dataclasses import dataclass, field

from bowline.testing.fault_proxy.calls import ProxiedCall
from bowline.testing.fault_proxy.faults import CutWatch, FailWatch, Fault, StallWatch

__all__ = ["CallMatch", "FaultRule"]

WATCH_FAULTS = (CutWatch, StallWatch, FailWatch)


@dataclass(frozen=True, slots=True)
class CallMatch:
    """Which requests are covered; an empty field covers all. A ``subresource`` of "" means the object itself."""

    verbs: tuple[str, ...] = ()
    resource: str = ""
    subresource: str | None = None
    namespace: str = ""
    name: str = ""

    def covers(self, call: ProxiedCall) -> bool:
        """Return whether the request is covered."""
        return (
            (not self.verbs or call.verb in self.verbs)
            and self.resource in ("", call.resource)
            and (self.subresource is None or self.subresource == call.subresource)
            and self.namespace in ("", call.namespace)
            and self.name in ("", call.name)
        )


@dataclass(frozen=True, slots=True)
class FaultRule:
    """A fault and when it is due: for each request, only for the ``nth``, counted from 1, or with a ``chance``."""

    fault: Fault
    match: CallMatch = field(default_factory=CallMatch)
    nth: int = 0
    chance: float = 1.0

    def __post_init__(self) -> None:
        if self.nth < 0 or not 0 <= self.chance <= 1:
            raise ValueError("when a rule is due: nth from 1 (0 for any), chance from 0 to 1")
        if isinstance(self.fault, WATCH_FAULTS) and self.match.verbs != ("watch",):
            raise ValueError(f"{type(self.fault).__name__} is a fault of watches; match the verb watch alone")


class RuleBook:
    """The current rules. Tests change them from another thread."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)  # noqa: S311 - no security purpose
        self._lock = threading.Lock()
        self._rules: tuple[FaultRule, ...] = ()
        self._match_counts: list[int] = []

    def add(self, *rules: FaultRule) -> None:
        """Append rules."""
        with self._lock:
            self._rules += rules
            self._match_counts += [0] * len(rules)

    def clear(self) -> None:
        """Remove all rules."""
        with self._lock:
            self._rules, self._match_counts = (), []

    def choose(self, call: ProxiedCall) -> Fault | None:
        """Return the fault of the request, None for none."""
        with self._lock:
            fault = None
            for index, rule in enumerate(self._rules):
                if not rule.match.covers(call):
                    continue
                self._match_counts[index] += 1
                if fault is None and self._is_due(rule, self._match_counts[index]):
                    fault = rule.fault
            return fault

    def _is_due(self, rule: FaultRule, count: int) -> bool:
        return rule.nth in (0, count) and (rule.chance >= 1 or self._random.random() < rule.chance)
