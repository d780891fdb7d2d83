"""The interface of providers of binaries.

A provider yields one answer per requested recipe: a path, or a refusal with its reason. It never raises for a missing
binary; the chain in `supply` continues and reports the reasons if no provider has it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bowline.localcluster.assets.recipes import Recipe


@dataclass(frozen=True, slots=True)
class ProviderAnswer:
    """A provider's result for one recipe: `path` when supplied, else `reason`."""

    recipe: Recipe
    path: Path | None
    reason: str = ""


class Fetcher(Protocol):
    """A provider that creates new files, in the work folder; the caller moves them into the cache."""

    @property
    def name(self) -> str:
        """The provider's name in messages."""
        ...

    def fetch(self, recipes: Sequence[Recipe], work: Path) -> Iterator[ProviderAnswer]:
        """One answer per recipe, each as soon as it is known."""
        ...
