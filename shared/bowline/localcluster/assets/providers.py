"""The interface of providers of binaries, and the simplest one: a folder that the user names.

A provider yields one answer per requested recipe: a path, or a refusal with its reason. It never raises for a missing
binary; the chain in `supply` continues and reports the reasons if no provider has it.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bowline.localcluster.assets.recipes import KUBERNETES_TOOLS, Recipe, Tool

# A binary that hangs on --version is unusable; a working one answers within a second.
_VERSION_TIMEOUT_S = 20


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
    """A folder named by an environment variable, such as the one `setup-envtest` prints.

    Its Kubernetes binaries must have the requested minor version: a control plane of mixed versions fails in ways
    that resemble defects of the code under test. kubectl is exempt, because a skew of one minor version is supported.
    """

    setting: str
    path: Path

    @property
    def name(self) -> str:
        """The setting's name, as the user writes it."""
        return f"${self.setting}"

    def find(self, recipe: Recipe) -> ProviderAnswer:
        """Return the binary in this folder, if it exists and has the right version."""
        candidate = self.path / recipe.tool
        if not candidate.is_file():
            return ProviderAnswer(recipe, None, f"{self.path} has no {recipe.tool}")
        if not os.access(candidate, os.X_OK):
            return ProviderAnswer(recipe, None, f"{candidate} is not executable")
        if recipe.tool in KUBERNETES_TOOLS and recipe.tool is not Tool.KUBECTL:
            fault = _minor_fault(candidate, recipe.version)
            if fault:
                return ProviderAnswer(recipe, None, fault)
        return ProviderAnswer(recipe, candidate)


def _minor_fault(binary: Path, expected_version: str) -> str:
    """Return why the binary's minor version is not the wanted one; empty if it is."""
    try:
        result = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{binary} does not run: {error}"
    match = re.search(r"v\d+\.\d+", result.stdout)
    minor = ".".join(expected_version.split(".")[:2])
    if match is None:
        return f"{binary} --version prints no version"
    if match[0] != minor:
        return f"{binary} is {match[0]}, asked for {minor}"
    return ""
