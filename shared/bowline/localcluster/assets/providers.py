"""The interface of providers of binaries, and the simplest one: a folder that the user names.

A provider yields one answer per requested recipe: a path, or a refusal with its reason. It never raises for a missing
binary; the chain in `supply` continues and reports the reasons if no provider has it.
"""

import os
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


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder named by an environment variable. That its binaries are of one version is the user's task."""

    setting: str
    path: Path

    @property
    def name(self) -> str:
        """The setting's name, as the user writes it."""
        return f"${self.setting}"

    def find(self, recipe: Recipe) -> ProviderAnswer:
        """Return the binary in this folder, if it can be executed."""
        candidate = self.path / recipe.tool
        if not candidate.is_file():
            return ProviderAnswer(recipe, None, f"{self.path} has no {recipe.tool}")
        if not os.access(candidate, os.X_OK):
            return ProviderAnswer(recipe, None, f"{candidate} is not executable")
        return ProviderAnswer(recipe, candidate)
