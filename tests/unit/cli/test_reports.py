"""GitHub's annotations: hostile text cannot break out of them."""

import pytest

from bowline.api.rule import Rule, Severity
from bowline_cli.lint_output import annotation
from bowline_cli.manifests import Finding

ERROR = Finding(
    Rule("gpu_request/fraction-range", "a test's"),
    "a.yaml",
    3,
    'gpu-fraction: "2": must be\n::error::less, 100 % <b>\x1b',
)
WARNING = Finding(Rule("scope/scheduler", "a test's", Severity.WARNS), "a.yaml", 9, "is not read", is_warning=True)
SPACED = Finding(Rule("a/b", "a test's"), "charts/my app/pod#1.yaml", 1, "must be")


def test_an_annotation_is_one_line() -> None:
    assert annotation(ERROR, has_place=True) == (
        "::error file=a.yaml,line=3,title=gpu_request/fraction-range::"
        'gpu-fraction: "2": must be%0A::error::less, 100 %25 <b>\x1b'
    )
    assert annotation(WARNING, has_place=False) == "::warning title=scope/scheduler::a.yaml: is not read"


def decoded(text: str) -> str:
    """Return the value of a workflow command as the runner decodes it: a percent sign last."""
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


@pytest.mark.parametrize("finding", [ERROR, WARNING, SPACED], ids=lambda finding: finding.rule.id)
def test_the_runner_decodes_an_annotation_to_its_finding(finding: Finding) -> None:
    head, _, message = annotation(finding, has_place=True).removeprefix("::").partition("::")
    command, _, properties = head.partition(" ")
    assert command == ("warning" if finding.is_warning else "error")
    values = {name: decoded(value) for name, _, value in (item.partition("=") for item in properties.split(","))}
    assert values == {"file": finding.file, "line": str(finding.line), "title": finding.rule.id}
    assert decoded(message) == finding.message
