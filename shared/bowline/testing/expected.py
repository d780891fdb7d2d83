"""What an undisturbed attempt writes and leaves: the state that disturbed attempts are compared with. Values only."""

from collections.abc import Sequence
from dataclasses import dataclass

from bowline.testing.fault_proxy.calls import ProxiedCall


@dataclass(frozen=True, slots=True)
class Expected:
    """The writes of an undisturbed attempt, the objects that it leaves, and where it can be stopped (``Pause``).

    Writes have numbers, counted from 1.
    """

    calls: Sequence[ProxiedCall]
    footprint: dict[str, str]
    collections: frozenset[tuple[str, str]]
    stops: Sequence[tuple[str, int]]

    @property
    def writes(self) -> range:
        """The numbers of all writes."""
        return range(1, len(self.calls) + 1)

    @property
    def own_writes(self) -> list[int]:
        """Those of the plugins' own; the Binding is not."""
        return [number for number in self.writes if self.is_own(number)]

    def is_own(self, number: int) -> bool:
        """Return whether a write is one of the plugins' own."""
        return not is_binding(self.calls[number - 1])

    def words(self, number: int) -> str:
        """Return a write in words."""
        return f"write {number} ({self.calls[number - 1].kind})"


def is_binding(call: ProxiedCall) -> bool:
    """Return whether the call binds a pod."""
    return (call.resource, call.subresource) == ("pods", "binding")
