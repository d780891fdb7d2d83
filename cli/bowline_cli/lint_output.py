"""What ``bowline lint`` prints of what it has read and reviewed: text, JSON, annotations of GitHub. Pure."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from difflib import unified_diff
from itertools import chain
from typing import Any

import jsonpatch
import yaml

from bowline.api import names
from bowline.api.field_error import FieldError
from bowline.api.rule import Rule
from bowline_cli.manifests import DUPLICATE_KEY, Finding, Manifest
from bowline_cli.schema import UNCHECKED
from bowline_cli.terminal import inert_json, printable
from bowline_cli.verdicts import COUNTED, LintResult, LintVerdict

# Of the JSON output; a change of its keys increases it.
FORMAT_VERSION = 2
# Of charts, and of reasons for being out of scope, that one line has.
_NAMED_CHARTS, _NAMED_REASONS = 8, 4
_CHART = "the templates of a Helm chart are not rendered: review them by helm template CHART | bowline lint -"


@dataclass(slots=True)
class LintReading:
    """What was read. ``unrendered``: files and the reason; ``charts``: folders whose templates are not read;
    ``schema``: the version of Kubernetes whose schema was applied, empty: none.
    """

    manifests: list[Manifest] = field(default_factory=list)
    unreadable: list[Finding] = field(default_factory=list)
    unrendered: list[tuple[str, str]] = field(default_factory=list)
    charts: list[str] = field(default_factory=list)
    others: int = 0
    schema: str = ""


def as_json(results: Iterable[LintResult], reading: LintReading) -> str:
    """Return the results as JSON; its keys are a stable interface, see FORMAT_VERSION."""
    objects = [
        {
            "file": result.manifest.file,
            "line": result.manifest.line,
            "kind": result.manifest.kind,
            "namespace": result.namespace,
            "name": result.name,
            "verdict": result.verdict.value,
            "reviewed": result.verdict.is_review,
            "schema": result.has_schema,
            "reason": result.reason,
            "errors": [_error(result.manifest, error) for error in result.review.errors],
            "warnings": [
                *(_error(result.manifest, warning) for warning in result.review.warnings),
                *map(_duplicate, result.duplicates(), result.manifest.duplicates),
            ],
            "patch": list(result.review.patch),
        }
        for result in results
    ]
    document = {
        "version": FORMAT_VERSION,
        "schema": reading.schema,
        "objects": objects,
        "unreadable": [finding.message for finding in reading.unreadable],
        "unrendered": [file for file, _ in reading.unrendered],
        "charts": reading.charts,
        "others": reading.others,
    }
    return inert_json(json.dumps(document, indent=2))


def as_github(results: Sequence[LintResult], reading: LintReading, is_file: Callable[[str], bool]) -> str:
    """Return a workflow command of GitHub Actions for each finding, and for what was not reviewed; then a summary.

    ``is_file``: only in a file that exists an annotation has a place; of others the message has the path.
    """
    listed = [result for result in results if result.is_listed]
    findings = [*chain.from_iterable(result.findings() for result in listed), *reading.unreadable]
    unreviewed = [
        f"{result.manifest.place}: {result.manifest.kind} {result.name}: {_words(result)}"
        for result in listed
        if not result.verdict.is_review
    ]
    unreviewed += _unrendered(reading)
    unchecked = [*counted(results), *([] if reading.schema else [UNCHECKED])]
    errors = sum(not finding.is_warning for finding in findings)
    counts = (("object", len(results)), ("error", errors), ("warning", len(findings) - errors))
    words = [f"{count} {word}{'' if count == 1 else 's'}" for word, count in counts]
    lines = [
        *(annotation(finding, has_place=is_file(finding.file)) for finding in findings),
        *(f"::notice title=not reviewed::{_escaped(text)}" for text in unreviewed),
        *(f"::notice title=not checked::{_escaped(text)}" for text in unchecked),
        f"{words[0]}: {words[1]}, {words[2]}, {len(unreviewed)} not reviewed",
    ]
    return "\n".join(lines)


def annotation(finding: Finding, *, has_place: bool) -> str:
    """Return the workflow command; what it cannot carry is escaped."""
    place = {"file": finding.file, "line": str(finding.line)} if has_place else {}
    settings = ",".join(
        f"{key}={_escaped(value).replace(':', '%3A').replace(',', '%2C')}"
        for key, value in {**place, "title": finding.rule.id}.items()
    )
    message = finding.message if has_place else f"{finding.file}: {finding.message}"
    return f"::{'warning' if finding.is_warning else 'error'} {settings}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def as_text(
    results: Sequence[LintResult],
    reading: LintReading,
    *,
    shows_changes: bool = False,
    shows_all: bool = False,
) -> str:
    """Return the results as text: one line per object, one per error or warning, and a summary.

    ``shows_changes``: below an object that admission changes, the difference to the one that would be stored.
    ``shows_all``: also objects without pods, and of kinds that are not known, without findings.
    """
    lines: list[str] = []
    for result in results:
        if not (shows_all or result.is_listed):
            continue
        name = f"{result.namespace}/{result.name}" if result.namespace else result.name
        manifest = result.manifest
        lines.append(f"{manifest.place}: {manifest.kind} {name}: {_words(result)}")
        lines += [f"  {error}  ({_origin(error.rule)})" for error in result.review.errors]
        lines += [f"  warning: {error}  ({error.rule})" for error in result.review.warnings]
        lines += [f"  warning: {finding.message}  ({DUPLICATE_KEY})" for finding in result.duplicates()]
        lines += _changes(result) if shows_changes else []
    lines += [*_unrendered(reading), _summary(results, reading)]
    lines += counted(results) if not shows_all else []
    if results and not reading.schema:
        lines.append(UNCHECKED)
    return "\n".join(map(printable, lines))


def _origin(rule: Rule) -> str:
    """Return the rule of an error, and whose it is unless it is Bowline's."""
    return f"API server: {rule}" if rule.id.startswith("kubernetes/") else rule.id


def _unrendered(reading: LintReading) -> list[str]:
    """Return a line for each file, and one for the charts, that were not rendered; sub-charts are with theirs."""
    lines = [f"{file}: unrendered ({reason.removeprefix(f'{file}: ')})" for file, reason in reading.unrendered]
    charts = [chart for chart in reading.charts if not any(chart.startswith(f"{o}/charts/") for o in reading.charts)]
    rest = len(charts) - _NAMED_CHARTS
    more = f" and {rest} more" if rest > 0 else ""
    return [*lines, f"{', '.join(charts[:_NAMED_CHARTS])}{more}: {_CHART}"] if charts else lines


def counted(results: Sequence[LintResult]) -> list[str]:
    """Return the lines about the objects that are only counted; the first one says if nothing was reviewed."""
    lines: list[str] = []
    for verdict in COUNTED:
        reasons = [result.reason for result in results if result.verdict is verdict]
        if not reasons:
            continue
        counts = ", ".join(f"{reason}: {count}" for reason, count in Counter(reasons).most_common(_NAMED_REASONS))
        names_none = any(reason.startswith(f"scheduler {names.DEFAULT_SCHEDULER}") for reason in reasons)
        flag = "--assume-scheduler NAME reviews pods that name no scheduler, " if names_none else ""
        text = f"{len(reasons)} of {len(results)} objects are {verdict} ({counts})"
        lines.append(f"{text}; {flag}--all lists them")
    if lines and not any(result.verdict.is_review for result in results):
        lines[0] = f"nothing was reviewed: {lines[0]}"
    return lines


def _summary(results: Sequence[LintResult], reading: LintReading) -> str:
    verdicts = [result.verdict for result in results]
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in LintVerdict if verdict in verdicts]
    objects = "1 object" if len(verdicts) == 1 else f"{len(verdicts)} objects"
    parts = [f"{objects}: {', '.join(counts)}" if verdicts else "no objects found"]
    if reading.others:
        noun = "document is no manifest" if reading.others == 1 else "documents are no manifests"
        parts.append(f"{reading.others} {noun}")
    if reading.unrendered or reading.charts:
        parts.append(f"{len(reading.unrendered) + len(reading.charts)} not rendered")
    ignored = sum(result.ignored for result in results)
    if ignored:
        parts.append(f"{ignored} {'finding' if ignored == 1 else 'findings'} ignored")
    kinds = dict.fromkeys(result.manifest.kind for result in results if not result.has_schema and result.is_listed)
    if kinds and reading.schema:
        parts.append(f"without a schema: {', '.join(kinds)}")
    return "; ".join(parts)


def _words(result: LintResult) -> str:
    return f"{result.verdict} ({result.reason})" if result.reason else str(result.verdict)


def _changes(result: LintResult) -> list[str]:
    """Return the lines that admission adds to and removes from an allowed object, with the lines around them."""
    if not (result.review.allowed and result.review.patch):
        return []
    patched_object = jsonpatch.apply_patch(result.submitted, list(result.review.patch))
    before, after = (
        yaml.safe_dump(content, sort_keys=False).splitlines() for content in (result.submitted, patched_object)
    )
    return [f"  {line}" for line in unified_diff(before, after, "submitted", "stored", lineterm="")]


def _error(manifest: Manifest, error: FieldError) -> dict[str, Any]:
    return {
        "rule": error.rule.id,
        "path": error.path,
        "line": manifest.line_of(error.path),
        "value": error.value,
        "message": error.message,
    }


def _duplicate(finding: Finding, duplicate: tuple[int, str]) -> dict[str, Any]:
    _, key = duplicate
    return {"rule": finding.rule.id, "path": "", "line": finding.line, "value": key, "message": finding.message}
