"""What every provider of binaries answers, and the simplest one: a folder the user names.

A provider yields one answer per recipe it was asked for: a path or a refusal with its reason. It never
raises for "I do not have it"; the chain in `supply` goes on and quotes the reasons if nobody has it.
"""

import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from localcluster.assets.recipes import KUBERNETES_TOOLS, Recipe, Tool

# A binary that hangs on --version is as good as none; a working one answers within a second.
_VERSION_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Answer:
    """A provider's word on one recipe: `path` when supplied, else `reason`."""

    recipe: Recipe
    path: Path | None
    reason: str = ""


class Fetcher(Protocol):
    """A provider that makes new files, in the work folder; the caller moves them into the cache."""

    @property
    def name(self) -> str:
        """How messages call this provider."""
        ...

    def fetch(self, recipes: Sequence[Recipe], work: Path) -> Iterator[Answer]:
        """One answer per recipe, each as soon as it is known."""
        ...


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder named by an environment variable, such as the one `setup-envtest` prints.

    Its Kubernetes binaries must be of the minor that was asked for: a control plane of mixed minors fails
    in ways that look like faults of the thing under test. kubectl is exempt, one minor of skew is fine.
    """

    setting: str
    path: Path

    @property
    def name(self) -> str:
        """The setting, as the user knows it."""
        return f"${self.setting}"

    def look(self, recipe: Recipe) -> Answer:
        """The binary in this folder, if it is there and fits."""
        candidate = self.path / recipe.tool
        if not candidate.is_file():
            return Answer(recipe, None, f"{self.path} has no {recipe.tool}")
        if not os.access(candidate, os.X_OK):
            return Answer(recipe, None, f"{candidate} is not executable")
        if recipe.tool in KUBERNETES_TOOLS and recipe.tool is not Tool.KUBECTL:
            fault = _minor_fault(candidate, recipe.version)
            if fault:
                return Answer(recipe, None, fault)
        return Answer(recipe, candidate)


def _minor_fault(binary: Path, wanted: str) -> str:
    """Empty when the binary's minor is the wanted one."""
    try:
        done = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=_VERSION_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{binary} does not run: {error}"
    found = re.search(r"v\d+\.\d+", done.stdout)
    minor = ".".join(wanted.split(".")[:2])
    if found is None:
        return f"{binary} --version does not say a version"
    if found[0] != minor:
        return f"{binary} is {found[0]}, asked for {minor}"
    return ""
