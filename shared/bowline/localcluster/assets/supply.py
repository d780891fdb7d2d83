"""The chain of providers: the cache, a download, a build.

Each binary is taken from the first provider that has it; the reasons of the others are reported together if none has
it. The expensive providers run under the cache's lock, after the cache has been read again: the previous holder of
the lock may have supplied the missing binaries.
"""

import os
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bowline.localcluster.assets.cache import Cache, cache_root
from bowline.localcluster.assets.download import Downloader
from bowline.localcluster.assets.gobuild import GoBuilder
from bowline.localcluster.assets.progress import Progress
from bowline.localcluster.assets.providers import Fetcher
from bowline.localcluster.assets.recipes import CLUSTER_TOOLS, Recipe, Tool, recipe_for
from bowline.localcluster.assets.versions import KubernetesRelease, release_for
from bowline.localcluster.errors import AssetsError


@dataclass(frozen=True, slots=True)
class Assets:
    """The paths of the supplied binaries."""

    release: KubernetesRelease
    paths: Mapping[Tool, Path]

    def path(self, tool: Tool) -> Path:
        """Return the path of a binary; KeyError if it was not requested."""
        return self.paths[tool]


def this_machine() -> str:
    """Return the processor of this machine, by Go's name."""
    machine = platform.machine().lower()
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(machine, machine)


def ensure_assets(
    tools: Iterable[Tool] = CLUSTER_TOOLS,
    minor: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Assets:
    """Return every named binary, from the first provider that has it. Raises AssetsError for those that none has."""
    env = os.environ if environ is None else environ
    progress_output = progress or Progress()
    release = release_for(minor, env)
    recipes = [recipe_for(tool, release, this_machine()) for tool in tools]
    fetchers: list[Fetcher] = [Downloader(progress_output), GoBuilder(progress_output, env)]
    chain = Chain(Cache(cache_root(env)), fetchers, progress_output)
    return Assets(release, chain.supply(recipes))


def at_hand(tools: Iterable[Tool]) -> bool:
    """Return whether the cache has all of them, so that nothing is downloaded or built."""
    release, cache = release_for(None, os.environ), Cache(cache_root(os.environ))
    return all(cache.find(recipe_for(tool, release, this_machine())) for tool in tools)


class Chain:
    """Runs the providers in order and collects their refusals."""

    def __init__(self, cache: Cache, fetchers: Sequence[Fetcher], progress: Progress) -> None:
        self._cache = cache
        self._fetchers = fetchers
        self._progress = progress

    def supply(self, recipes: Sequence[Recipe]) -> dict[Tool, Path]:
        """Return a path per recipe. Raises AssetsError."""
        refusals: dict[Tool, list[str]] = {recipe.tool: [] for recipe in recipes}
        paths: dict[Tool, Path] = {}
        self._from_cache(recipes, paths)
        if missing := _without(recipes, paths):
            for recipe in missing:
                refusals[recipe.tool].append(f"cache: {self._cache.path(recipe)} is not there")
            self._fetch(missing, paths, refusals)
        if missing := _without(recipes, paths):
            raise AssetsError(_not_available(missing, refusals))
        return paths

    def _from_cache(self, recipes: Sequence[Recipe], paths: dict[Tool, Path]) -> None:
        for recipe in _without(recipes, paths):
            if path := self._cache.find(recipe):
                paths[recipe.tool] = path

    def _fetch(self, missing: Sequence[Recipe], paths: dict[Tool, Path], refusals: dict[Tool, list[str]]) -> None:
        with self._cache.exclusive(self._progress) as work:
            self._from_cache(missing, paths)
            for fetcher in self._fetchers:
                left = _without(missing, paths)
                if not left:
                    return
                for answer in fetcher.fetch(left, work):
                    recipe = answer.recipe
                    if answer.path:
                        paths[recipe.tool] = self._cache.admit(recipe, answer.path)
                        self._progress.report(f"{recipe.tool} {recipe.version}: ready ({fetcher.name})")
                    else:
                        refusals[recipe.tool].append(f"{fetcher.name}: {answer.reason}")
                        first_line = answer.reason.splitlines()[0] if answer.reason else "no reason given"
                        self._progress.report(f"{recipe.tool} {recipe.version}: no {fetcher.name}: {first_line}")


def _without(recipes: Sequence[Recipe], paths: Mapping[Tool, Path]) -> list[Recipe]:
    return [recipe for recipe in recipes if recipe.tool not in paths]


def _not_available(missing: Sequence[Recipe], refusals: Mapping[Tool, Sequence[str]]) -> str:
    lines = ["these binaries could not be supplied:"]
    for recipe in missing:
        lines.append(f"  {recipe.tool} {recipe.version}")
        lines += [f"    - {reason}".replace("\n", "\n      ") for reason in refusals[recipe.tool]]
    hosts = sorted({recipe.download.url.split("/")[2] for recipe in missing if recipe.download})
    lines.append("what to do, one of:")
    if hosts:
        lines.append(f"  - let this machine reach {' and '.join(hosts)} (HTTPS_PROXY is honoured)")
    lines.append("  - install a current Go (https://go.dev/dl) and let it reach its module proxy")
    lines.append("  - put executable binaries of yours where the cache lacks them, as named above")
    return "\n".join(lines)
