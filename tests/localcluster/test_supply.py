"""The chain of providers: its order, its cache, and the one error when none has a binary."""

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from bowline.localcluster.assets.cache import Cache
from bowline.localcluster.assets.progress import Progress
from bowline.localcluster.assets.providers import Fetcher, Folder, ProviderAnswer
from bowline.localcluster.assets.recipes import CLUSTER_TOOLS, Platform, Recipe, Tool, recipe_for
from bowline.localcluster.assets.supply import ENVTEST_SETTING, FOLDER_SETTING, Chain
from bowline.localcluster.assets.versions import release_for
from bowline.localcluster.errors import AssetsError
from tests.localcluster.conftest import MakeScript


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


def chain(cache: Path, folders: Sequence[Folder], *fetchers: Fetcher) -> Chain:
    return Chain(folders, Cache(cache), fetchers, Progress(quiet=True))


def test_the_first_fetcher_that_has_a_tool_supplies_it_and_the_cache_keeps_it(tmp_path: Path) -> None:
    download, build = Maker("download", Tool.ETCD), Maker("go build", Tool.ETCD, Tool.KWOK)
    paths = chain(tmp_path, [], download, build).supply(recipes(Tool.ETCD, Tool.KWOK))
    assert {tool: path.read_text() for tool, path in paths.items()} == {
        Tool.ETCD: "made by download",
        Tool.KWOK: "made by go build",
    }
    assert build.tools == [Tool.KWOK]
    again = Maker("download")
    assert chain(tmp_path, [], again).supply(recipes(Tool.ETCD, Tool.KWOK)) == paths
    assert again.tools == []


def test_binaries_from_before_a_failure_remain_in_the_cache(tmp_path: Path) -> None:
    with pytest.raises(AssetsError):
        chain(tmp_path, [], Maker("download", Tool.ETCD)).supply(recipes(Tool.ETCD, Tool.KWOK))
    second = Maker("download", Tool.KWOK)
    chain(tmp_path, [], second).supply(recipes(Tool.ETCD, Tool.KWOK))
    assert second.tools == [Tool.KWOK]


def test_a_missing_tools_error_lists_every_provider_and_a_remedy(tmp_path: Path) -> None:
    folder = Folder(ENVTEST_SETTING, tmp_path / "envtest")
    with pytest.raises(AssetsError) as caught:
        chain(tmp_path / "cache", [folder], Maker("download"), Maker("go build")).supply(recipes(Tool.KWOK))
    message = str(caught.value)
    for expected in (
        "kwok v0.8.0",
        f"${ENVTEST_SETTING}: {tmp_path / 'envtest'} has no kwok",
        "cache: ",
        "download: download has no kwok",
        "go build: go build has no kwok",
        "let this machine reach github.com",
        "install a current Go",
        f"set {FOLDER_SETTING} to it",
    ):
        assert expected in message


def test_a_named_folder_takes_precedence_over_the_cache(tmp_path: Path, make_script: MakeScript) -> None:
    chain(tmp_path / "cache", [], Maker("download", Tool.ETCD)).supply(recipes(Tool.ETCD))
    named = make_script(tmp_path / "named" / "etcd", "true")
    paths = chain(tmp_path / "cache", [Folder(FOLDER_SETTING, named.parent)]).supply(recipes(Tool.ETCD))
    assert paths == {Tool.ETCD: named}


def test_an_incomplete_bowline_assets_is_an_error_that_names_what_is_missing(
    tmp_path: Path, make_script: MakeScript
) -> None:
    make_script(tmp_path / "named" / "etcd", "true")
    maker = Maker("download", *Tool)
    with pytest.raises(AssetsError) as caught:
        chain(tmp_path / "cache", [Folder(FOLDER_SETTING, tmp_path / "named")], maker).supply(recipes(*CLUSTER_TOOLS))
    missing = [f"has no {tool}" for tool in CLUSTER_TOOLS if tool is not Tool.ETCD]
    assert all(words in str(caught.value) for words in missing)
    assert f"${FOLDER_SETTING}" in str(caught.value)
    assert maker.tools == [], "a failed download must not start a build of minutes"


@pytest.mark.parametrize(
    ("tool", "body", "reason"),
    [
        pytest.param(Tool.APISERVER, "echo Kubernetes v1.36.9", "", id="the same minor"),
        pytest.param(Tool.APISERVER, "echo Kubernetes v1.31.0", "is v1.31, asked for v1.36", id="another minor"),
        pytest.param(Tool.APISERVER, "echo hello", "prints no version", id="no version"),
        pytest.param(Tool.APISERVER, "exit 1", "prints no version", id="it fails"),
        pytest.param(Tool.KUBECTL, "echo v1.35.0", "", id="kubectl may be of another minor"),
        pytest.param(Tool.ETCD, "echo etcd", "", id="etcd is not checked"),
    ],
)
def test_a_folder_gives_only_kubernetes_binaries_of_the_asked_minor(
    tmp_path: Path, make_script: MakeScript, tool: Tool, body: str, reason: str
) -> None:
    make_script(tmp_path / tool, body)
    [recipe] = recipes(tool)
    answer = Folder(ENVTEST_SETTING, tmp_path).find(recipe)
    assert (answer.path is None) == bool(reason)
    assert reason in answer.reason


def test_a_killed_runs_work_folder_is_removed_and_never_used(tmp_path: Path) -> None:
    stale = tmp_path / ".work-stale"
    stale.mkdir()
    (stale / "etcd").write_text("half")
    with Cache(tmp_path).exclusive(Progress(quiet=True)) as work:
        assert not stale.exists()
        assert work.is_dir()
    assert not work.exists()


def test_of_two_concurrent_runs_one_creates_a_missing_binary(tmp_path: Path) -> None:
    # 1. both read the cache: nothing there  2. one gets the lock and creates it
    # 3. the other gets the lock: it must read the cache again, not create it a second time
    first_is_making, second_is_waiting = threading.Event(), threading.Event()

    class Slow(Maker):
        def fetch(self, recipes: Sequence[Recipe], work: Path) -> Iterator[ProviderAnswer]:
            first_is_making.set()
            assert second_is_waiting.wait(10)
            return super().fetch(recipes, work)

    class Noting(Progress):
        def report(self, text: str) -> None:
            if "waiting for it" in text:
                second_is_waiting.set()

    slow, second = Slow("download", Tool.ETCD), Maker("download", Tool.ETCD)
    thread = threading.Thread(target=lambda: chain(tmp_path, [], slow).supply(recipes(Tool.ETCD)))
    thread.start()
    assert first_is_making.wait(10)
    paths = Chain([], Cache(tmp_path), [second], Noting()).supply(recipes(Tool.ETCD))
    thread.join()
    assert second.tools == []
    assert os.access(paths[Tool.ETCD], os.X_OK)
