"""The commands and the CI job of docs/lint.md, and the manifests of docs/half-a-gpu.md."""

import re
import shutil
import sys
from pathlib import Path

import pytest

from bowline_cli.main import main
from tests.documents import ROOT, Command, blocks, commands, run

PAGE = "docs/lint.md"


@pytest.mark.parametrize("command", commands(PAGE), ids=lambda command: command.text[:60])
def test_a_command_of_the_page_prints_what_the_page_states(command: Command, tmp_path: Path) -> None:
    output = run(command.text, tmp_path / "none")
    assert command.matches(output), output


# Blocks without jobs configure the action and pre-commit, which test_ci_files.py runs.
def test_the_job_of_the_page_installs_the_wheel_and_passes_with_good_manifests(tmp_path: Path) -> None:
    (job,) = [block.text for block in blocks(ROOT / PAGE) if block.info == "yaml" and "pip install" in block.text]
    install, lint = re.findall(r"(?m)^ *- run: (.*)$", job)
    assert install == 'pip install "$BOWLINE"'
    shutil.copytree(ROOT / "examples" / "manifests" / "good", tmp_path / "deploy")
    program = Path(sys.executable).parent / "bowline"
    run(f"cd {tmp_path} && {lint.replace('bowline', str(program), 1)}", tmp_path / "none")


def test_the_manifests_on_the_page_of_shares_are_allowed_without_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifests = [block.text for block in blocks(ROOT / "docs" / "half-a-gpu.md") if block.info == "yaml"]
    file = tmp_path / "manifest.yaml"
    file.write_text("\n---\n".join(manifests), encoding="utf-8")
    assert main(["lint", str(file)]) == 0
    output = capsys.readouterr().out.splitlines()
    assert all(line.endswith(": allowed") for line in output[:-1]), output
    assert len(output) == len(manifests) + 1 > 5
