"""The commands of docs/lint.md, and those of the CI jobs in it."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.documents import ROOT, Command, blocks, commands, run

PAGE = "docs/lint.md"


def job_commands(value: object) -> Iterator[str]:
    """Yield the commands of the jobs of a CI configuration, at any depth."""
    for key, content in (
        value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ())
    ):
        if key == "script" and isinstance(content, list):
            yield from content
        elif key == "run" and isinstance(content, str):
            yield content
        else:
            yield from job_commands(content)


# Blocks without commands configure the action and pre-commit, which tests/unit/cli/test_ci_files.py runs.
JOBS = [
    job
    for block in blocks(ROOT / PAGE)
    if block.info == "yaml" and (job := list(job_commands(yaml.safe_load(block.text))))
]


@pytest.mark.parametrize("command", commands(PAGE), ids=lambda command: command.text[:60])
def test_a_command_of_the_page_prints_what_the_page_states(command: Command, tmp_path: Path) -> None:
    output = run(command.text, tmp_path / "none")
    assert command.matches(output), output


@pytest.mark.parametrize("job", JOBS, ids=["github"])
def test_the_job_of_a_ci_system_installs_the_wheel_and_passes_with_good_manifests(
    job: list[str], tmp_path: Path
) -> None:
    install, lint = job
    assert install == 'pip install "$BOWLINE"'
    shutil.copytree(ROOT / "examples" / "manifests" / "good", tmp_path / "deploy")
    program = Path(sys.executable).parent / "bowline"
    run(f"cd {tmp_path} && {lint.replace('bowline', str(program), 1)}", tmp_path / "none")
