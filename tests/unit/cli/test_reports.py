"""The formats for CI systems: what each contains, and that hostile text cannot break out of it."""

import json
from xml.etree import ElementTree

from bowline.cli.reports import Finding, Subject, as_github, as_junit, as_sarif

ERROR = Finding("gpu_request/fraction-range", "a.yaml", 3, 'gpu-fraction: "2": must be\n::error::less, 100 % <b>\x1b')
WARNING = Finding("scope/scheduler", "a.yaml", 9, "is not read", is_warning=True)
SUBJECTS = [
    Subject("a.yaml:3: Pod a", "denied", True, [ERROR]),
    Subject("a.yaml:9: Pod b", "out of scope (scheduler x)", False, [WARNING]),
    Subject("b.yaml:1: Pod c", "allowed", True),
]


def test_sarif_has_a_result_for_each_finding_and_each_rule_once() -> None:
    log = json.loads(as_sarif([*SUBJECTS, SUBJECTS[0]]))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [ERROR.rule, WARNING.rule]
    assert [(result["ruleId"], result["ruleIndex"], result["level"]) for result in run["results"]] == [
        (ERROR.rule, 0, "error"),
        (WARNING.rule, 1, "warning"),
        (ERROR.rule, 0, "error"),
    ]
    location = run["results"][1]["locations"][0]["physicalLocation"]
    assert location == {"artifactLocation": {"uri": "a.yaml"}, "region": {"startLine": 9}}
    assert run["results"][0]["message"] == {"text": ERROR.message}


def test_junit_has_a_case_for_each_object() -> None:
    suites = ElementTree.fromstring(as_junit(SUBJECTS))  # noqa: S314 - our own output
    (suite,) = suites
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    denied, skipped, allowed = suite
    failure = denied.find("failure")
    assert failure is not None
    assert failure.get("type") == ERROR.rule
    assert failure.text == f"a.yaml:3: {ERROR.message.replace(chr(27), chr(92) + 'x1b')} ({ERROR.rule})"
    assert [child.tag for child in skipped] == ["skipped", "system-out"]
    assert list(allowed) == []


def test_github_has_one_line_for_each_finding() -> None:
    error, warning, summary = as_github(SUBJECTS).splitlines()
    assert error == (
        "::error file=a.yaml,line=3,title=gpu_request/fraction-range::"
        'gpu-fraction: "2": must be%0A::error::less, 100 %25 <b>\x1b'
    )
    assert warning.startswith("::warning file=a.yaml,line=9,title=scope/scheduler::")
    assert summary == "3 objects: 1 errors, 1 warnings"


def test_nothing_found_is_an_empty_report() -> None:
    assert json.loads(as_sarif([]))["runs"][0]["results"] == []
    assert ElementTree.fromstring(as_junit([]))[0].get("tests") == "0"  # noqa: S314 - our own output
    assert as_github([]) == "0 objects: 0 errors, 0 warnings"
