"""Text that CI systems take for commands is made inert; GitHub's annotations: hostile text cannot break out."""

import json
import re

import pytest

from bowline.api.rule import Rule, Severity
from bowline_cli.lint_output import annotation
from bowline_cli.manifests import Finding
from bowline_cli.terminal import inert_json, printable

COMMANDS = ["::stop-commands::x", "  ::set-output name=a::b", "##[error]x", "a ##vso[task.complete]", "##teamcity[x]"]


@pytest.mark.parametrize("text", COMMANDS)
def test_no_name_or_value_is_a_command_to_a_ci_system(text: str) -> None:
    encoded = inert_json(json.dumps([text], indent=2))
    assert json.loads(encoded) == [text]
    for output in (encoded, printable(text)):
        assert not [line for line in output.splitlines() if line.lstrip().startswith("::")]
        assert re.search(r"##\w*\[", output) is None


ERROR = Finding(
    Rule("gpu_request/fraction-range", "a test's"),
    "a.yaml",
    3,
    'gpu-fraction: "2": must be\n::error::less, 100 % <b>\x1b',
)
WARNING = Finding(Rule("scope/scheduler", "a test's", Severity.WARNS), "a.yaml", 9, "is not read", is_warning=True)
SPACED = Finding(Rule("a/b", "a test's"), "charts/my app/pod#1.yaml", 1, "must be")


def decoded(text: str) -> str:
    """Return the value of a workflow command as the runner decodes it: a percent sign last."""
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


@pytest.mark.parametrize("finding", [ERROR, WARNING, SPACED], ids=lambda finding: finding.rule.id)
def test_the_runner_decodes_an_annotation_to_its_finding(finding: Finding) -> None:
    text = annotation(finding, has_place=True)
    assert "\n" not in text
    head, _, message = text.removeprefix("::").partition("::")
    command, _, properties = head.partition(" ")
    assert command == ("warning" if finding.is_warning else "error")
    values = {name: decoded(value) for name, _, value in (item.partition("=") for item in properties.split(","))}
    assert values == {"file": finding.file, "line": str(finding.line), "title": finding.rule.id}
    assert decoded(message) == finding.message


def test_without_a_place_an_annotation_begins_with_the_file() -> None:
    assert annotation(WARNING, has_place=False) == "::warning title=scope/scheduler::a.yaml: is not read"
