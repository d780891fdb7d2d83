"""The chain of providers: its order, its cache, and the one error when none has a binary."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bowline.localcluster.assets.cache import Cache
from bowline.localcluster.assets.progress import Progress
from bowline.localcluster.assets.providers import Fetcher, Folder, ProviderAnswer
from bowline.localcluster.assets.recipes import CLUSTER_TOOLS, Platform, Recipe, Tool, recipe_for
from bowline.localcluster.assets.supply import FOLDER_SETTING, Chain
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
    return [recipe_for(tool, release, Platform("linux", "amd64")) for tool in tools]


def chain(cache: Path, *fetchers: Fetcher, folder: Folder | None = None) -> Chain:
    return Chain(folder, Cache(cache), fetchers, Progress(quiet=True))


def named_folder(path: Path, *tools: Tool) -> Folder:
    path.mkdir()
    for tool in tools:
        (path / tool).touch(mode=0o755)
    return Folder(FOLDER_SETTING, path)


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
        f"set {FOLDER_SETTING} to it",
    ):
        assert expected in message


def test_a_named_folder_takes_precedence_over_the_cache(tmp_path: Path) -> None:
    chain(tmp_path / "cache", Maker("download", Tool.ETCD)).supply(recipes(Tool.ETCD))
    folder = named_folder(tmp_path / "named", Tool.ETCD)
    paths = chain(tmp_path / "cache", folder=folder).supply(recipes(Tool.ETCD, Tool.ETCD))
    assert paths == {Tool.ETCD: folder.path / "etcd"}


def test_an_incomplete_folder_is_an_error_that_names_what_is_missing_but_for_helm(tmp_path: Path) -> None:
    folder = named_folder(tmp_path / "named", Tool.ETCD)
    maker = Maker("download", *Tool)
    with pytest.raises(AssetsError) as caught:
        chain(tmp_path / "cache", maker, folder=folder).supply(recipes(*CLUSTER_TOOLS))
    missing = [f"has no {tool}" for tool in CLUSTER_TOOLS if tool is not Tool.ETCD]
    assert all(words in str(caught.value) for words in (f"${FOLDER_SETTING}", *missing))
    assert maker.tools == [], "a failed download must not start a build of minutes"
    assert Tool.HELM in chain(tmp_path / "cache", maker, folder=folder).supply(recipes(Tool.ETCD, Tool.HELM))
