"""The formats for CI systems: what each contains, and that hostile text cannot break out of it."""

import json
import re
from typing import Annotated, Literal
from xml.etree import ElementTree

import pytest
from pydantic import BaseModel, ConfigDict, Field

from bowline.cli.findings import Finding, Subject
from bowline.cli.reports import as_github, as_junit, as_sarif

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


# --- the formats' own schemas, as far as they are used ---


class Closed(BaseModel):
    """An object of SARIF 2.1.0: names, types, what is required, and which values are allowed."""

    model_config = ConfigDict(extra="forbid", strict=True)


class ArtifactLocation(Closed):
    uri: Annotated[str, Field(pattern=r"^[A-Za-z0-9\-._~:/?#@!$&'()*+,;=%]+$")]


class Region(Closed):
    startLine: Annotated[int, Field(ge=1)]  # noqa: N815 - the name in the format, as below


class PhysicalLocation(Closed):
    artifactLocation: ArtifactLocation  # noqa: N815
    region: Region


class Location(Closed):
    physicalLocation: PhysicalLocation  # noqa: N815


class Message(Closed):
    text: str


class Result(Closed):
    ruleId: str  # noqa: N815
    ruleIndex: Annotated[int, Field(ge=0)]  # noqa: N815
    level: Literal["none", "note", "warning", "error"]
    message: Message
    locations: list[Location]


class Rule(Closed):
    id: str


class Driver(Closed):
    name: str
    rules: list[Rule]


class Tool(Closed):
    driver: Driver


class Run(Closed):
    tool: Tool
    results: list[Result]


class Sarif(Closed):
    schema_: Annotated[str, Field(alias="$schema")]
    version: Literal["2.1.0"]
    runs: list[Run]


SPACED = [Subject("x", "denied", True, [Finding("a/b", "charts/my app/pod#1.yaml", 1, "must be")])]


@pytest.mark.parametrize("subjects", [SUBJECTS, SPACED, []])
def test_sarif_is_valid(subjects: list[Subject]) -> None:
    Sarif.model_validate_json(as_sarif(subjects))


# Of JUnit XML as CI systems read it: the attributes of each element, those that it needs, and its children in order.
JUNIT: dict[str, tuple[set[str], set[str], list[str]]] = {
    "testsuites": ({"name", "time", "tests", "failures", "errors"}, set(), ["testsuite"]),
    "testsuite": ({"name", "tests", "failures", "errors", "skipped", "time"}, {"name", "tests"}, ["testcase"]),
    "testcase": ({"name", "classname", "time"}, {"name", "classname"}, ["skipped", "error", "failure", "system-out"]),
    "failure": ({"message", "type"}, set(), []),
    "skipped": ({"message"}, set(), []),
    "system-out": (set(), set(), []),
}


@pytest.mark.parametrize("subjects", [SUBJECTS, SPACED, []])
def test_junit_is_valid(subjects: list[Subject]) -> None:
    for element in ElementTree.fromstring(as_junit(subjects)).iter():  # noqa: S314 - our own output
        allowed, required, children = JUNIT[element.tag]
        assert required <= set(element.keys()) <= allowed
        positions = [children.index(child.tag) for child in element]
        assert positions == sorted(positions)
        for count in ("tests", "failures", "errors", "skipped"):
            assert element.get(count, "0").isdecimal()


@pytest.mark.parametrize("subjects", [SUBJECTS, SPACED])
def test_each_annotation_is_a_workflow_command_of_github(subjects: list[Subject]) -> None:
    *annotations, _ = as_github(subjects).splitlines()
    for line in annotations:
        command = re.fullmatch(r"::(error|warning) ((?:(?:file|line|title)=[^,:\n]+,?)+)::[^\n]*", line)
        assert command is not None, line
