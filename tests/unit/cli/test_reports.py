"""GitHub's annotations: what they contain, and that hostile text cannot break out of them."""

import pytest

from bowline.api.rule import Rule, Severity
from bowline_cli.findings import Finding, FindingSubject
from bowline_cli.reports import as_github

ERROR = Finding(
    Rule("gpu_request/fraction-range", "a test's"),
    "a.yaml",
    3,
    'gpu-fraction: "2": must be\n::error::less, 100 % <b>\x1b',
)
WARNING = Finding(Rule("scope/scheduler", "a test's", Severity.WARNS), "a.yaml", 9, "is not read", is_warning=True)
SUBJECTS = [
    FindingSubject("a.yaml:3: Pod a", "denied", True, [ERROR]),
    FindingSubject("a.yaml:9: Pod b", "out of scope (scheduler x)", False, [WARNING]),
    FindingSubject("b.yaml:1: Pod c", "allowed", True),
]


def test_github_has_one_line_for_each_finding() -> None:
    error, warning, notice, note, summary = as_github(SUBJECTS, 5, ["a.yaml"], ["2 of 5 objects"]).splitlines()
    assert error == (
        "::error file=a.yaml,line=3,title=gpu_request/fraction-range::"
        'gpu-fraction: "2": must be%0A::error::less, 100 %25 <b>\x1b'
    )
    assert warning.startswith("::warning file=a.yaml,line=9,title=scope/scheduler::")
    assert notice == "::notice title=not reviewed::a.yaml:9: Pod b: out of scope (scheduler x)"
    assert note == "::notice title=not checked::2 of 5 objects"
    assert summary == "5 objects: 1 error, 1 warning, 1 not reviewed"


SPACED = [
    FindingSubject("x", "denied", True, [Finding(Rule("a/b", "a test's"), "charts/my app/pod#1.yaml", 1, "must be")])
]


def decoded(text: str) -> str:
    """Return the value of a workflow command as the runner decodes it: a percent sign last."""
    for code, character in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, character)
    return text


@pytest.mark.parametrize("subjects", [SUBJECTS, SPACED])
def test_the_runner_decodes_each_annotation_to_its_finding(subjects: list[FindingSubject]) -> None:
    annotations = [
        line
        for line in as_github(subjects, len(subjects), ["a.yaml", "charts/my app/pod#1.yaml"]).splitlines()[:-1]
        if not line.startswith("::notice")
    ]
    findings = [finding for subject in subjects for finding in subject.findings]
    for line, finding in zip(annotations, findings, strict=True):
        head, _, message = line.removeprefix("::").partition("::")
        command, _, properties = head.partition(" ")
        assert command == ("warning" if finding.is_warning else "error")
        values = {name: decoded(value) for name, _, value in (item.partition("=") for item in properties.split(","))}
        assert values == {"file": finding.file, "line": str(finding.line), "title": finding.rule.id}
        assert decoded(message) == finding.message
