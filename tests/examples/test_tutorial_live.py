"""docs/tutorial.md, executed from its first command to the last in one shell, with the output that it states.

The folder is a copy of the checkout, so that the cluster is not the developer's own in `.cluster`.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.documents import ROOT, commands
from tests.waiting import LIMIT_S

PAGE = "docs/tutorial.md"
# What the page shows to fail.
FAILING = ("kubectl create -f examples/manifests/bad/", "bowline lint examples/manifests/bad/")
END = "the command ended with "


@dataclass(frozen=True, slots=True)
class Shell:
    """A shell in a folder; it keeps its variables from one command to the next."""

    process: "subprocess.Popen[str]"

    def run(self, command: str) -> tuple[str, int]:
        """Run a command; return its output, standard error included, and its exit status."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\nprintf '{END}%s\\n' $?\n")
        self.process.stdin.flush()
        lines: list[str] = []
        for line in self.process.stdout:
            if line.startswith(END):
                return "".join(lines), int(line.removeprefix(END))
            lines.append(line)
        raise AssertionError(f"the shell has ended: {''.join(lines)}")


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """A shell in a folder that looks like the checkout; the cluster ends with the test."""
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, files.split("\0")):
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target, follow_symlinks=False)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    # A reader's shell was not started by make: there make prints no folder.
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    with subprocess.Popen(
        ["bash", "--norc"],
        cwd=tmp_path,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield Shell(process)
        finally:
            process.kill()
            subprocess.run(["make", "down"], cwd=tmp_path, check=True, timeout=LIMIT_S)


def test_every_command_of_the_tutorial_prints_what_it_states(shell: Shell) -> None:
    steps = commands(PAGE)
    assert steps[0].text == "make up"
    assert steps[-1].text == "make down"
    for step in steps:
        output, status = shell.run(step.text)
        # What a reader sees after a moment: the status of a request follows the bind.
        deadline = time.monotonic() + LIMIT_S
        while step.text.startswith("kubectl get ") and not step.matches(output) and time.monotonic() < deadline:
            output, status = shell.run(step.text)
        assert step.matches(output), f"{step.text}\nstated:\n{step.output}\nactual:\n{output}"
        assert (status != 0) is step.text.startswith(FAILING), f"{step.text} ended with {status}:\n{output}"
