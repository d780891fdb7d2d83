"""The name under which Bowline is installed: nothing in the repository installs another project's (decision 241)."""

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

from bowline.runtime.version import DISTRIBUTION
from bowline_cli.plugin_new import files

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALL = re.compile(r"\b(?:pip|pipx|uv pip|uv tool) install\s+(?P<words>(?:\[[^\]\n]*\]|[^`#;|&),\n])*)")
REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?P<extras>\[[^\]]*\])?(?:[=<>!~].*)?")
# Options of pip whose value is the next word.
WITH_VALUE = {"-r", "--requirement", "-c", "--constraint", "-e", "--editable", "--prefix", "--target"}
# A Bowline that no index has: its name with extras or a version.
OTHER = re.compile(r"(?<![\w./-])bowline(?:\[[a-z,]+\]|\s*(?:>=|==|~=)\s*[0-9{])")


def tracked() -> Iterator[tuple[str, str]]:
    """Yield path and text of every file that git tracks or would add."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines():
        path = ROOT / name
        if path.is_file() and path != Path(__file__) and not name.startswith("docs/decisions/"):
            try:
                yield name, path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def installed_names(text: str) -> Iterator[str]:
    """Yield the distributions that the commands of a text install from an index."""
    for command in INSTALL.finditer(text.replace("\\\n", " ")):
        words = iter(command["words"].split())
        for word in words:
            if word in WITH_VALUE:
                next(words, None)
                continue
            plain = word.strip("'\",.")
            is_file = "/" in plain or "$" in plain or plain.endswith(".whl") or word.startswith(("-", ".", "'."))
            if not is_file and (match := REQUIREMENT.fullmatch(plain)):
                yield match["name"]


def test_every_command_that_installs_names_a_package_of_the_project() -> None:
    locks = "".join(path.read_text() for path in (ROOT / "requirements").glob("*.txt"))
    known = {*re.findall(r"(?m)^([A-Za-z0-9._-]+)==", locks), DISTRIBUTION}
    unknown = [(name, word) for name, text in tracked() for word in installed_names(text) if word not in known]
    assert unknown == []


def test_nothing_depends_on_the_other_project() -> None:
    assert [(name, match[0]) for name, text in tracked() for match in OTHER.finditer(text)] == []


def test_the_search_finds_what_was_documented_once() -> None:
    text = "`pip install 'bowline[kubeconfig]'`, pip install bowline\npip install -r a.txt ./b.whl '.[dev]' mypy"
    assert list(installed_names(text)) == ["bowline", "bowline", "mypy"]
    assert OTHER.search('dependencies = ["bowline>=0.1.0"]')
    assert not OTHER.search('"bowline-binder>=0.1.0", example.com/bowline:0.1.0')


def test_the_distribution_has_one_name() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    for extra in PROJECT["optional-dependencies"].values():
        own = [item for item in extra if item.startswith("bowline")]
        assert all(item.startswith(f"{DISTRIBUTION}[") for item in own)
    project = tomllib.loads(files("seats")["pyproject.toml"])["project"]
    (dependency,) = project["dependencies"]
    assert dependency.startswith(f"{DISTRIBUTION}>=")
    assert f"{DISTRIBUTION}[testing]" in project["optional-dependencies"]["dev"]


def test_the_commands_and_the_import_keep_their_names() -> None:
    assert set(PROJECT["scripts"]) == {"bowline", "kubectl-bowline"}
    assert (ROOT / "shared" / "bowline" / "__init__.py").exists()
