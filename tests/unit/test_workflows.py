"""Which targets of the Makefile workflows and parts of `make test-all` name, and the commits of their actions."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.all import PAGE, PARTS, stored_outcomes, with_outcomes

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
# What every change must pass; a workflow runs it.
SCRIPT = ".ci/run"
# Targets that no workflow calls, and why.
EXCEPTIONS = {"test-all": "it takes hours; a release runs it"}


def steps_of(workflow: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], str]]:
    """Yield the steps of all jobs with their commands, once for each value of a matrix that these name."""
    for job in workflow["jobs"].values():
        matrix = (job.get("strategy") or {}).get("matrix") or {}
        for step in job["steps"]:
            texts = [step.get("run", "")]
            for name, values in matrix.items():
                texts = [text.replace(f"${{{{ matrix.{name} }}}}", value) for text in texts for value in values]
            for text in dict.fromkeys(texts):
                yield step, text


def targets_of(text: str) -> set[str]:
    """Return the targets of the calls of make in a script."""
    return set(re.findall(r"(?:^|[ \t])make ([a-z][a-z-]*)", text, re.MULTILINE))


def called() -> dict[str, set[str]]:
    """The targets that each workflow calls, by its file."""
    script = targets_of((ROOT / SCRIPT).read_text(encoding="utf-8"))
    return {
        file.name: {
            target
            for _, text in steps_of(yaml.safe_load(file.read_text(encoding="utf-8")))
            for target in (targets_of(text) | (script if SCRIPT in text else set()))
        }
        for file in WORKFLOWS
    }


def test_a_workflow_calls_only_targets_that_exist() -> None:
    assert {file: targets for file, targets in called().items() if targets - TARGETS} == {}


def test_every_target_of_tests_is_called_by_a_workflow_or_has_a_reason_why_not() -> None:
    tests = {target for target in TARGETS if target == "test" or target.startswith("test-")}
    assert tests - set().union(*called().values()) == set(EXCEPTIONS)


def test_every_part_is_a_target_and_the_page_has_its_row() -> None:
    assert {part.command.split()[1] for part in PARTS} <= TARGETS
    page = PAGE.read_text(encoding="utf-8")
    assert with_outcomes(page, stored_outcomes()) == page, "run a part by `python -m tests.all`"


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_every_action_is_at_a_commit_whose_version_is_stated(file: Path) -> None:
    actions = re.findall(r"^ *(?:- )?uses: (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(actions) == len(re.findall(r"\buses:", file.read_text(encoding="utf-8")))
    assert [action for action in actions if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[0-9.]+", action)] == []


def test_what_publishes_a_release_builds_nothing_and_what_builds_may_publish_nothing() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yaml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    jobs = workflow["jobs"]
    assert workflow["permissions"] == {}
    assert {name: job["permissions"] for name, job in jobs.items() if name != "publish"} == {
        name: {"contents": "read"} for name in ("test", "build")
    }
    assert "actions/checkout" not in str(jobs["publish"])
    assert "secrets." not in str(jobs["test"]) + str(jobs["build"])
    assert text.count("persist-credentials: false") == text.count("uses: actions/checkout")
    # The images that two actions run.
    assert len(re.findall(r"image[:=] ?\S+@sha256:[0-9a-f]{64}$", text, re.MULTILINE)) == 2
