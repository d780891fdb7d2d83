"""Which lines of the product a run enters, by a trace function: five times as slow, so of a share of the runs."""

import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
# What a reconciler process runs, beside the parts that need a real network.
FOLDERS = ("reconciler/bowline_reconciler", "shared/bowline/framework/binding", "shared/bowline/plugins")
_LEFT_OUT = ("/tests/", "/agent/", "admission", "config.py", "guards.py")

Entered = Mapping[str, set[int]]
Outcome = TypeVar("Outcome")


def entering(run: Callable[[], Outcome]) -> tuple[Outcome, dict[str, set[int]]]:
    """Run, and return by module which lines were entered."""
    entered: defaultdict[str, set[int]] = defaultdict(set)
    prefixes = tuple(str(ROOT / folder) for folder in FOLDERS)

    def in_function(frame: FrameType, event: str, _: Any) -> Any:
        if event == "line":
            entered[frame.f_code.co_filename].add(frame.f_lineno)
        return in_function

    def at_call(frame: FrameType, *_: Any) -> Any:
        return in_function if frame.f_code.co_filename.startswith(prefixes) else None

    sys.settrace(at_call)
    try:
        outcome = run()
    finally:
        sys.settrace(None)
    return outcome, {str(Path(name).relative_to(ROOT)): lines for name, lines in entered.items()}


def table(entered: Entered) -> str:
    """Return how much of each module's functions was entered, least first, and which functions never were."""
    rows = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if any(part in name for part in _LEFT_OUT):
                continue
            functions = dict(_functions(compile(path.read_text(encoding="utf-8"), str(path), "exec")))
            lines = set().union(*functions.values())
            hits = lines & set(entered.get(name, ()))
            missed = [function for function, of in functions.items() if not of & hits]
            if lines:
                rows.append((len(hits) / len(lines), name, len(hits), len(lines), missed))
    total, hit = sum(row[3] for row in rows), sum(row[2] for row in rows)
    text = [f"{hit / max(total, 1):.0%} of {total} lines in functions entered"]
    text += [
        f"{share:5.0%} {name}: never {', '.join(missed) or 'some lines'}" for share, name, *_, missed in sorted(rows)
    ]
    return "\n".join(text)


def _functions(code: CodeType, prefix: str = "") -> Iterator[tuple[str, set[int]]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            name = f"{prefix}{constant.co_name}"
            lines = {line for _, _, line in constant.co_lines() if line is not None} - {constant.co_firstlineno}
            if lines and constant.co_flags & 2 and "<" not in name:  # a function's, not a class's
                yield name, lines
            yield from _functions(constant, "" if constant.co_flags & 2 else f"{name}.")
