"""What an undisturbed attempt writes and leaves: the state that disturbed attempts are compared with. Values only."""

from collections.abc import Sequence
from dataclasses import dataclass

from bowline.testing.fault_proxy.calls import ProxiedCall


@dataclass(frozen=True, slots=True)
class Expected:
    """The writes of an undisturbed attempt, and the objects that it leaves."""

    calls: Sequence[ProxiedCall]
    footprint: dict[str, str]
    collections: frozenset[tuple[str, str]]

    @property
    def names(self) -> list[str]:
        """The writes in words."""
        return [call.kind for call in self.calls]

    @property
    def writes(self) -> int:
        """Their number."""
        return len(self.calls)

    def is_own(self, number: int) -> bool:
        """Return whether a write, counted from 1, is the plugin's; the Binding is not."""
        return not is_binding(self.calls[number - 1])


def is_binding(call: ProxiedCall) -> bool:
    """Return whether the call binds a pod."""
    return (call.resource, call.subresource) == ("pods", "binding")
