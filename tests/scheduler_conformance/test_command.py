"""`python -m bowline.conformance --scheduler`: one line for each case, below it why, and the scheduler's log."""

import shlex
from collections.abc import Callable
from contextlib import nullcontext

import pytest

from bowline.conformance.__main__ import main
from bowline.conformance.scheduler import SchedulerCluster
from tests.scheduler_conformance.programs import EXAMPLE

Command = Callable[..., int]


@pytest.fixture
def command(binder: SchedulerCluster, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command, on the cluster of the other tests."""
    monkeypatch.setattr(SchedulerCluster, "start", lambda *_: nullcontext(binder))
    return lambda scheduler, *options: main(["--scheduler", scheduler, *options])


def test_a_case_passes(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(shlex.join(EXAMPLE), "--case=first-decision") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("PASS first-decision ")
    assert lines[1:] == ["1 passed, 0 failed"]


def test_a_scheduler_that_ends_is_named_with_its_last_lines(
    command: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("sh -c 'echo no such cluster; exit 3'", "--case=restart") == 1
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("FAIL restart ")
    assert lines[1] == "decides: the scheduler has ended with status 3"
    assert lines[2].startswith("observed at the end: pod pod-0 on no node; ")
    assert lines[3] == 'docs/write-a-scheduler.md: "Decide for unbound pods with your scheduler\'s name"'
    assert lines[-2:] == ["no such cluster", "0 passed, 1 failed: restart"]
