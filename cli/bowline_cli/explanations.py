"""How explanations are printed, for the person who reads them: as text, as a table, as JSON. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from bowline.api.meta import format_time
from bowline_cli.facts import Explanation, Facts, age
from bowline_cli.rights import Rights
from bowline_cli.terminal import printable


@dataclass(frozen=True, slots=True)
class ExplainedObject:
    """What is explained: an object of a kind, and what was read and follows. ``facts``: of the object's key."""

    kind: str
    facts: Facts
    explanation: Explanation

    def __str__(self) -> str:
        return f"{self.kind} {self.facts.key}"


def for_reader(rights: Rights, subject: ExplainedObject) -> ExplainedObject:
    """Return the explanation with the commands that the user may run; the others are an administrator's."""
    explanation = subject.explanation
    commands = [command for command in explanation.commands if rights.allow(command)]
    denied = [command for command in explanation.commands if command not in commands]
    details = [*explanation.details, *(f"ask an administrator to run: {command}" for command in denied)]
    if explanation.afterwards:
        allowed = next(filter(rights.allow, explanation.afterwards), "")
        who = "" if allowed else "ask an administrator to run, "
        details.append(f"{who}once the cause is corrected: {allowed or explanation.afterwards[0]}")
    return replace(subject, explanation=replace(explanation, commands=tuple(commands), details=tuple(details)))


def as_text(subject: ExplainedObject) -> str:
    """Return the explanation as text."""
    facts, explanation = subject.facts, subject.explanation
    lines = [f"{subject}: {explanation.cause}"]
    if explanation.since is not None:
        lines.append(f"  since  {format_time(explanation.since)} ({age(facts.now - explanation.since)})")
    lines += [f"  until  {explanation.until}"] if explanation.until else []
    lines += [f"  next   {command}" for command in explanation.commands]
    lines += [f"  also   {detail}" for detail in explanation.details]
    lines += [f"  {not_read(facts.unreadable)}"] if facts.unreadable else []
    if facts.info is not None and facts.info.docs:
        page = f"/stuck-pods.html#{explanation.section}" if explanation.section else ""
        lines.append(f"  more   {facts.info.docs}{page}")
    return "\n".join(map(printable, lines))


def not_read(unreadable: Iterable[str]) -> str:
    """Return the line that names what could not be read."""
    return f"not read (rights): {', '.join(unreadable)}"


def as_table(subjects: Sequence[ExplainedObject], now: datetime, unreadable: Sequence[str] = ()) -> str:
    """Return one line for each subject, in columns, and below them what could not be read."""
    note = f"\n{printable(not_read(unreadable))}" if unreadable else ""
    if not subjects:
        return f"no pod waits{note}"
    rows = [("NAMESPACE", "NAME", "AGE", "CAUSE")]
    for subject in subjects:
        key, since = subject.facts.key, subject.explanation.since
        name = key.name if subject.kind == "Pod" else f"{subject.kind.lower()}/{key.name}"
        rows.append((key.namespace, name, age(now - since) if since else "", subject.explanation.cause))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return (
        "\n".join(
            printable("   ".join((*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3])))
            for row in rows
        )
        + note
    )


def as_json(subjects: Sequence[ExplainedObject], *, is_list: bool) -> str:
    """Return the explanations as JSON: one object, or ``{"items": [...]}``."""
    items: list[Mapping[str, Any]] = []
    for subject in subjects:
        explanation = subject.explanation
        items.append(
            {
                "kind": subject.kind,
                "namespace": subject.facts.key.namespace,
                "name": subject.facts.key.name,
                "cause": explanation.cause,
                "since": format_time(explanation.since) if explanation.since is not None else None,
                "until": explanation.until,
                "next": list(explanation.commands),
                "also": list(explanation.details),
                "notRead": list(subject.facts.unreadable),
                "isStuck": explanation.is_stuck,
            }
        )
    return json.dumps({"items": items} if is_list else items[0], indent=2)
