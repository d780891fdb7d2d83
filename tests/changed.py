"""The tests that a change concerns: ``python -m tests.changed`` runs them (``make test-changed``).

A test file concerns a module that it imports, directly or through a few others (``--depth``): through enough of them
every file imports everything. What is started as a process, rendered or read concerns the tests of a folder. What no
rule knows concerns the tests of the house. It is a choice for a quick answer; ``make test`` runs everything.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import grimp
import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("shared", "webhook", "reconciler", "cli")
PACKAGES = ("bowline", "bowline_webhook", "bowline_reconciler", "bowline_cli", "tests", "tools")
# Tests by what they read or start instead of importing it. The first pattern that matches a path counts.
BY_PATH = (
    ("charts/**", ("tests/chart",)),
    ("examples/**", ("tests/examples",)),
    ("webhook/**/*.py", ("tests/webhook",)),
    ("cli/**/*.py", ("tests/unit/cli",)),
    ("requirements/**", ("tests/unit/test_distribution.py",)),
    (".github/**", ("tests/unit/test_workflows.py",)),
    ("**/*.md", ("tests/unit/test_documents.py",)),
)
ALWAYS = "tests/unit/test_house.py"


def imports() -> grimp.ImportGraph:
    """Return which module of the repository imports which."""
    sys.path[:0] = [str(ROOT), *(str(ROOT / folder) for folder in SOURCES)]
    try:
        return grimp.build_graph(*PACKAGES, cache_dir=None)
    finally:
        del sys.path[: len(SOURCES) + 1]


def changed_paths(base: str, folder: Path) -> list[str]:
    """Return the paths that differ from the commit where the branch left ``base``; new files are among them."""
    common = _git(folder, "merge-base", base, "HEAD")[0]
    return [
        *_git(folder, "diff", "--name-only", common),
        *_git(folder, "ls-files", "--others", "--exclude-standard"),
    ]


def concerned(paths: Iterable[str], graph: grimp.ImportGraph, depth: int) -> list[str]:
    """Return the files and folders of the tests that a change of these paths concerns, in alphabetical order.

    ``depth``: of how many imports a chain from the test to the changed module has at most.
    """
    tests = {ALWAYS}
    for path in paths:
        pure = PurePosixPath(path)
        tests.update(next((folders for pattern, folders in BY_PATH if _matches(pure, pattern)), ()))
        if pure.suffix == ".py":
            tests.update(_importing(_module(pure), graph, depth))
        if pure.is_relative_to("shared/bowline/plugins") and len(pure.parts) > 4:
            tests.update(_tests_of_plugin(pure.parts[3]))
        if pure.name.startswith("test_"):
            tests.add(path)
    # A removed file has no tests to run; a folder includes its files.
    present = {test for test in tests if (ROOT / test).exists()}
    return sorted(
        test for test in present if not any(str(folder) in present for folder in PurePosixPath(test).parents)
    )


def _matches(path: PurePosixPath, pattern: str) -> bool:
    start, _, end = pattern.partition("**")
    return str(path).startswith(start) and path.match(end.lstrip("/") or "*")


def _module(path: PurePosixPath) -> str:
    parts = path.parts[1:] if path.parts[0] in SOURCES else path.parts
    return ".".join(parts).removesuffix(".py").removesuffix(".__init__")


def _importing(module: str, graph: grimp.ImportGraph, depth: int) -> set[str]:
    """Return the test files from which a chain of imports leads to the module."""
    importers = level = {module} & graph.modules
    for _ in range(depth):
        level = {importer for name in level for importer in graph.find_modules_that_directly_import(name)} - importers
        importers = importers | level
    return {f"{name.replace('.', '/')}.py" for name in importers if name.rpartition(".")[2].startswith("test_")}


def _tests_of_plugin(name: str) -> set[str]:
    live = (ROOT / "tests" / "plugins").glob(f"test_{name}*.py")
    return {f"shared/bowline/plugins/{name}/tests", *(path.relative_to(ROOT).as_posix() for path in live)}


def _git(folder: Path, *arguments: str) -> list[str]:
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True
    ).stdout.splitlines()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tests with pytest; options that are not known here are pytest's. Returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.changed", description=__doc__.partition("\n")[0])
    parser.add_argument("--base", default="origin/main", help="the branch or commit to compare with")
    parser.add_argument("--depth", type=int, default=2, help="imports between a test and a changed module")
    parser.add_argument("--list", action="store_true", help="print the files and folders; run nothing")
    options, of_pytest = parser.parse_known_args(arguments)
    tests = concerned(changed_paths(options.base, ROOT), imports(), options.depth)
    if options.list:
        sys.stdout.write("\n".join([*tests, ""]))
        return 0
    return int(pytest.main([*tests, *of_pytest]))


if __name__ == "__main__":
    sys.exit(main())
