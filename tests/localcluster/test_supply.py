"""The chain of providers: its order, its cache, and the one error when none has a binary."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bowline.localcluster.assets.cache import Cache
from bowline.localcluster.assets.progress import Progress
from bowline.localcluster.assets.providers import Fetcher, ProviderAnswer
from bowline.localcluster.assets.recipes import Recipe, Tool, recipe_for
from bowline.localcluster.assets.supply import Chain
from bowline.localcluster.assets.versions import release_for
from bowline.localcluster.errors import AssetsError


class Maker:
    """A fetcher that creates the given tools and rejects the others; it records the requests."""

    def __init__(self, name: str, *has: Tool) -> None:
        self.name = name
        self._has = has
        self.tools: list[Tool] = []

    def fetch(self, recipes: Sequence[Recipe], work: Path) -> Iterator[ProviderAnswer]:
        for recipe in recipes:
            self.tools.append(recipe.tool)
            if recipe.tool not in self._has:
                yield ProviderAnswer(recipe, None, f"{self.name} has no {recipe.tool}")
                continue
            path = work / f"{recipe.tool}.made"
            path.write_text(f"made by {self.name}")
            yield ProviderAnswer(recipe, path)


def recipes(*tools: Tool) -> list[Recipe]:
    release = release_for("1.36", {})
    return [recipe_for(tool, release, "amd64") for tool in tools]


def chain(cache: Path, *fetchers: Fetcher) -> Chain:
    return Chain(Cache(cache), fetchers, Progress(quiet=True))


def test_the_first_fetcher_that_has_a_tool_supplies_it_and_the_cache_keeps_it(tmp_path: Path) -> None:
    download, build = Maker("download", Tool.ETCD), Maker("go build", Tool.ETCD, Tool.KWOK)
    paths = chain(tmp_path, download, build).supply(recipes(Tool.ETCD, Tool.KWOK))
    assert {tool: path.read_text() for tool, path in paths.items()} == {
        Tool.ETCD: "made by download",
        Tool.KWOK: "made by go build",
    }
    assert build.tools == [Tool.KWOK]
    again = Maker("download")
    assert chain(tmp_path, again).supply(recipes(Tool.ETCD, Tool.KWOK)) == paths
    assert again.tools == []


def test_a_missing_tools_error_lists_every_provider_and_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(AssetsError) as caught:
        chain(tmp_path, Maker("download"), Maker("go build")).supply(recipes(Tool.KWOK))
    message = str(caught.value)
    for expected in (
        "kwok v0.8.0",
        "cache: ",
        "download: download has no kwok",
        "go build: go build has no kwok",
        "let this machine reach github.com",
        "install a current Go",
        "where the cache lacks them",
    ):
        assert expected in message
