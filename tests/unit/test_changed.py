"""The tests that a change concerns are found by imports and by folder."""

import subprocess
from pathlib import Path

import grimp
import pytest

from tests.changed import ALWAYS, changed_paths, concerned, imports, main


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return imports()


@pytest.mark.parametrize(
    ("path", "test"),
    [
        pytest.param(
            "reconciler/bowline_reconciler/decide/gang.py",
            "tests/unit/reconciler/test_gang.py",
            id="the module's own",
        ),
        pytest.param("tests/live.py", "tests/pair/test_explain_live.py", id="a helper of tests"),
        pytest.param("tests/unit/test_house.py", "tests/unit/test_house.py", id="a test"),
        pytest.param(
            "shared/bowline/plugins/hami_core/rules.py", "shared/bowline/plugins/hami_core/tests", id="a plugin's own"
        ),
        pytest.param(
            "shared/bowline/plugins/hami_core/rules.py", "tests/plugins/test_hami_core.py", id="its live ones"
        ),
        pytest.param("charts/bowline/values.yaml", "tests/chart", id="the chart"),
        pytest.param("webhook/bowline_webhook/server.py", "tests/webhook", id="a process"),
        pytest.param("docs/protocol.md", "tests/unit/test_documents.py", id="a page"),
        pytest.param("README.md", "tests/unit/test_documents.py", id="a page of the root folder"),
        pytest.param("Makefile", ALWAYS, id="what no rule knows"),
        pytest.param("tests/unit/test_removed.py", ALWAYS, id="a removed test"),
    ],
)
def test_a_change_concerns(graph: grimp.ImportGraph, path: str, test: str) -> None:
    assert test in concerned([path], graph, 2)


def test_a_change_concerns_few_others(graph: grimp.ImportGraph) -> None:
    tests = concerned(["reconciler/bowline_reconciler/decide/gang.py"], graph, 2)
    assert len(tests) < 10
    assert not [test for test in tests if "webhook" in test or "cli" in test]


def test_longer_chains_of_imports_concern_more() -> None:
    graph = grimp.ImportGraph()
    for importer, imported in (("bowline.b", "bowline.a"), ("tests.unit.test_house", "bowline.b")):
        graph.add_import(importer=importer, imported=imported)
    graph.add_import(importer="tests.unit.test_changed", imported="tests.unit.test_house")
    changed_files = ["shared/bowline/a.py"]
    assert [concerned(changed_files, graph, depth) for depth in (1, 2, 3)] == [
        [ALWAYS],
        [ALWAYS],
        ["tests/unit/test_changed.py", ALWAYS],
    ]


def test_a_folder_is_not_listed_again_by_its_files(graph: grimp.ImportGraph) -> None:
    tests = concerned(["charts/bowline/values.yaml", "tests/chart/test_notes.py"], graph, 1)
    assert tests == ["tests/chart", ALWAYS]


def test_changes_are_those_since_the_branch_left_the_base(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.com")
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    git("init", "--initial-branch=main")
    for branch, name in (("main", "old.py"), ("topic", "committed.py"), ("main", "of_others.py")):
        if name == "committed.py":
            git("checkout", "-b", branch)
        else:
            git("checkout", "-B", branch, *(() if name == "old.py" else ("main",)))
        (tmp_path / name).write_text("")
        git("add", name)
        git("commit", "--message", name)
    git("checkout", "topic")
    (tmp_path / "old.py").write_text("changed")
    (tmp_path / "new.py").write_text("")
    assert changed_paths("main", tmp_path) == ["committed.py", "old.py", "new.py"]


def test_the_list_is_printed_without_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--base=HEAD"]) == 0
    assert ALWAYS in capsys.readouterr().out.splitlines()
