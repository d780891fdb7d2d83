"""What the cases of binders and of schedulers have in common. Values only."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S")

# The two nodes of a conformance run's cluster.
NODE, OTHER_NODE = "gpu-node-0", "gpu-node-1"


@dataclass(frozen=True, slots=True)
class Case(Generic[S]):
    """A case: its name, what it promises or requires, and the function that runs it on a stage."""

    name: str
    promise: str
    run: Callable[[S], None]
