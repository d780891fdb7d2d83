"""Every path of a function, by choosing a field's value only when the function reads it.

A field that a path does not read cannot influence it, so the paths cover the product of all domains without
enumerating it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Choices:
    """The choices of one path: replayed up to a prefix, then the first of each domain."""

    def __init__(self, prefix: Sequence[int] = ()) -> None:
        self._prefix = prefix
        self.taken: list[tuple[int, int]] = []  # index, size of the domain
        self.values: dict[str, Any] = {}

    def choose(self, name: str, domain: Sequence[T]) -> T:
        """Return the value of a field; the same one whenever the path reads it again."""
        if name not in self.values:
            position = len(self.taken)
            index = self._prefix[position] if position < len(self._prefix) else 0
            self.taken.append((index, len(domain)))
            self.values[name] = domain[index]
        value: T = self.values[name]
        return value


@dataclass(frozen=True, slots=True)
class Path(Generic[T]):
    """One path: what was read, the result or the exception, and the share of the space that it stands for."""

    values: Mapping[str, Any]
    result: T | Exception
    share: Fraction


def paths(call: Callable[[Choices], T]) -> Iterator[Path[T]]:
    """Yield every path of ``call``, depth first."""
    prefix: list[int] = []
    while True:
        choices = Choices(prefix)
        result: T | Exception
        try:
            result = call(choices)
        except Exception as error:  # noqa: BLE001 - that there is none is one of the properties
            result = error
        share = Fraction(1)
        for _, size in choices.taken:
            share /= size
        yield Path(choices.values, result, share)
        prefix = [index for index, _ in choices.taken]
        while prefix and prefix[-1] + 1 >= choices.taken[len(prefix) - 1][1]:
            prefix.pop()
        if not prefix:
            return
        prefix[-1] += 1


def lazy(base: type[T], **fields: Callable[[Any], Any]) -> T:
    """Return an instance of a subclass whose fields are computed when they are read."""
    return object.__new__(
        type(f"Lazy{base.__name__}", (base,), {name: property(get) for name, get in fields.items()})
    )
