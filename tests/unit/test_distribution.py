"""The name under which Bowline is installed: nothing in the repository installs another project's."""

import re
import subprocess
import tomllib
from pathlib import Path

from bowline.runtime.version import DISTRIBUTION
from bowline_cli.plugin_new import files

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# A Bowline that no index has: its name with extras or a version, or as the package that a command installs.
OTHER = re.compile(
    r"(?<![\w./-])bowline(?:\[[a-z,]+\]|\s*(?:>=|==|~=)\s*[0-9{])"
    r"|\b(?:pip|pipx|uv pip|uv tool) install [^`\n]*(?<=[ '])bowline(?![\w/.-])"
)


def test_nothing_installs_or_depends_on_the_other_project() -> None:
    command = ["git", "grep", "-lI", "bowline"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    texts = {
        name: (ROOT / name).read_text()
        for name in names
        if not name.startswith(("docs/decisions/", "tests/unit/test_dist"))
    }
    assert {name: match[0] for name, text in texts.items() if (match := OTHER.search(text))} == {}
    for text in ("`pip install 'bowline[kubeconfig]'`", "pip install bowline", 'dependencies = ["bowline>=0.1.0"]'):
        assert OTHER.search(text)
    assert not OTHER.search('"bowline-binder>=0.1.0", pip install bowline-binder, example.com/bowline:0.1.0')


def test_the_distribution_has_one_name_and_the_commands_and_the_import_keep_theirs() -> None:
    assert PROJECT["name"] == DISTRIBUTION
    assert set(PROJECT["scripts"]) == {"bowline", "kubectl-bowline"}
    project = tomllib.loads(files("seats")["pyproject.toml"])["project"]
    (dependency,) = project["dependencies"]
    assert dependency.startswith(f"{DISTRIBUTION}>=")
    assert f"{DISTRIBUTION}[testing]" in project["optional-dependencies"]["dev"]
