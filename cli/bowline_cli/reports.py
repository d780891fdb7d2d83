"""Verdicts of ``bowline lint`` in the formats of CI systems: SARIF 2.1.0, GitHub's annotations. Pure.

Each has only what its readers show: errors and warnings with rule, file and line, and what was not reviewed
although it may have GPUs. Files that cannot be read are errors as well. What a workflow command cannot carry is
escaped, and so is what would be a command to the CI system that shows the output.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any
from urllib.parse import quote

from bowline.api.rule import Rule, page_of
from bowline_cli.findings import Finding, FindingSubject
from bowline_cli.terminal import inert_json

SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def as_sarif(subjects: Sequence[FindingSubject], docs_url: str = "", unchecked: str = "") -> str:
    """Return the findings as SARIF, for code scanning. ``docs_url``: where the documentation is published.

    ``unchecked``: what was not checked of all subjects, as a notification of the run.
    """
    findings = [finding for subject in subjects for finding in subject.findings]
    rules = {finding.rule.id: finding.rule for finding in findings}
    order = sorted(rules)
    results = [
        {
            "ruleId": finding.rule.id,
            "ruleIndex": order.index(finding.rule.id),
            "level": "warning" if finding.is_warning else "error",
            "message": {"text": finding.message},
            "locations": [
                {
                    "physicalLocation": {
                        "artifactLocation": {"uri": quote(finding.file)},
                        "region": {"startLine": finding.line},
                    }
                }
            ],
        }
        for finding in findings
    ]
    driver = {"name": "bowline lint", "rules": [_described(rules[rule], docs_url) for rule in order]}
    run: dict[str, Any] = {"tool": {"driver": driver}, "results": results}
    if unchecked:
        notifications = [{"level": "note", "message": {"text": unchecked}}]
        run["invocations"] = [{"executionSuccessful": True, "toolExecutionNotifications": notifications}]
    log = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return inert_json(json.dumps(log, indent=2))


def _described(rule: Rule, docs_url: str) -> dict[str, Any]:
    text = rule.meaning.replace("`", "")
    return {
        "id": rule.id,
        "shortDescription": {"text": text},
        "fullDescription": {"text": text},
        "help": {"text": f"bowline rule {rule.id}"},
        **({"helpUri": page_of(rule, docs_url)} if docs_url else {}),
    }


def as_github(
    subjects: Sequence[FindingSubject], objects: int, files: Collection[str], notes: Sequence[str] = ()
) -> str:
    """Return an annotation per finding, as a workflow command of GitHub Actions, and a summary.

    ``objects``: how many were read, also those that are not listed. ``files``: those that exist, so that annotations
    have a place; of others the message has the path. ``notes``: what was not checked of several.
    """
    findings = [finding for subject in subjects for finding in subject.findings]
    unreviewed = [subject for subject in subjects if not subject.is_reviewed]
    notices = [
        f"::notice title=not reviewed::{_escaped(f'{subject.name}: {subject.verdict}')}" for subject in unreviewed
    ]
    notices += [f"::notice title=not checked::{_escaped(note)}" for note in notes]
    errors = sum(not finding.is_warning for finding in findings)
    counts = (("object", objects), ("error", errors), ("warning", len(findings) - errors))
    words = [f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts]
    summary = f"{words[0]}: {words[1]}, {words[2]}, {len(unreviewed)} not reviewed"
    return "\n".join([*_commands(findings, files), *notices, summary])


def _commands(findings: Sequence[Finding], files: Collection[str]) -> Iterator[str]:
    for finding in findings:
        level = "warning" if finding.is_warning else "error"
        has_place = finding.file in files
        place = {"file": finding.file, "line": str(finding.line)} if has_place else {}
        properties = {**place, "title": finding.rule.id}
        settings = ",".join(
            f"{key}={_escaped(value).replace(':', '%3A').replace(',', '%2C')}" for key, value in properties.items()
        )
        message = finding.message if has_place else f"{finding.file}: {finding.message}"
        yield f"::{level} {settings}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
