"""The formats for CI systems: what each contains, and that hostile text cannot break out of it."""

import json
import re
from collections.abc import Iterator
from urllib.parse import unquote

import pytest
import sarif_pydantic  # type: ignore[import-untyped]
from pydantic import BaseModel
from sarif_pydantic import Level

from bowline.api.rule import Rule, Severity
from bowline_cli.findings import Finding, FindingSubject
from bowline_cli.reports import as_github, as_sarif

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


def test_sarif_has_a_result_for_each_finding_and_each_rule_once() -> None:
    log = json.loads(as_sarif([*SUBJECTS, SUBJECTS[0]]))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [ERROR.rule.id, WARNING.rule.id]
    assert [(result["ruleId"], result["ruleIndex"], result["level"]) for result in run["results"]] == [
        (ERROR.rule.id, 0, "error"),
        (WARNING.rule.id, 1, "warning"),
        (ERROR.rule.id, 0, "error"),
    ]
    location = run["results"][1]["locations"][0]["physicalLocation"]
    assert location == {"artifactLocation": {"uri": "a.yaml"}, "region": {"startLine": 9}}
    assert run["results"][0]["message"] == {"text": ERROR.message}


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


# --- the formats' own schemas, as far as they are used ---


SPACED = [
    FindingSubject("x", "denied", True, [Finding(Rule("a/b", "a test's"), "charts/my app/pod#1.yaml", 1, "must be")])
]


# --- what independent readers of the formats understand ---


def unknown_properties(model: BaseModel) -> Iterator[str]:
    """Yield the properties that the reader's model does not have, at any depth."""
    yield from model.model_extra or {}
    for value in vars(model).values():
        for item in value if isinstance(value, list) else (value,):
            if isinstance(item, BaseModel):
                yield from unknown_properties(item)


@pytest.mark.parametrize("subjects", [SUBJECTS, SPACED, []])
def test_a_reader_of_sarif_understands_every_property(subjects: list[FindingSubject]) -> None:
    log = sarif_pydantic.Sarif.model_validate_json(as_sarif(subjects))
    assert list(unknown_properties(log)) == []
    findings = [finding for subject in subjects for finding in subject.findings]
    results = log.runs[0].results
    assert [(result.rule_id, result.message.text) for result in results] == [(f.rule.id, f.message) for f in findings]
    for result, finding in zip(results, findings, strict=True):
        assert result.level is (Level.WARNING if finding.is_warning else Level.ERROR)
        (location,) = result.locations
        assert unquote(location.physical_location.artifact_location.uri) == finding.file


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


COMMANDS = ["::stop-commands::x", "  ::set-output name=a::b", "##[error]x", "a ##vso[task.complete]", "##teamcity[x]"]


@pytest.mark.parametrize("text", COMMANDS)
def test_no_name_or_value_is_a_command_to_a_ci_system(text: str) -> None:
    finding = Finding(Rule("a/b", "a test's"), f"{text}.json", 1, f"x\n{text}")
    output = as_sarif([FindingSubject(f"{text}.json:1: Pod a", text, True, [finding])])
    assert not [line for line in output.splitlines() if line.lstrip().startswith("::")]
    assert re.search(r"##\w*\[", output) is None
    assert json.loads(output)["runs"][0]["results"][0]["message"]["text"] == f"x\n{text}"
