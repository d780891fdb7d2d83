"""Verdicts of ``bowline lint`` as GitHub's annotations. Pure.

They have only what their readers show: errors and warnings with rule, file and line, and what was not reviewed
although it may have GPUs. Files that cannot be read are errors as well. What a workflow command cannot carry is
escaped.
"""

from collections.abc import Collection, Iterator, Sequence

from bowline_cli.findings import Finding, FindingSubject


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
