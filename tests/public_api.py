"""The public API as text, one line per name: what a plugin imports, the members of its classes and their arguments.

``python -m tests.public_api`` prints it. Types and the values of defaults are left out: type checkers compare those.
"""

import argparse
import enum
import inspect
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from bowline.conformance.__main__ import parser as conformance_parser
from bowline.conformance.scheduler_cases import SCHEDULER_CASES
from bowline.framework.interface.plugin import Plugin

MODULES = (
    "bowline",
    "bowline.errors",
    "bowline.resources",
    "bowline.testing.attempts",
    "bowline.testing.builders",
    "bowline.testing.conformance",
    "bowline.testing.fault_proxy.faults",
    "bowline.testing.fault_proxy.rules",
    "bowline.testing.pytest_plugin",
)
# Not exported, and what several exported classes inherit.
_BASES: Mapping[str, dict[str, Any]] = {"bowline": {"Plugin": Plugin}}
# Dunder methods that a caller uses, beside the constructor.
_CALLED = {"__init__", "__getitem__", "__enter__", "__aenter__", "__call__"}

_STARS: Mapping[object, str] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def lines() -> Iterator[str]:
    """Yield the lines of the snapshot, sorted within each module; then the command of conformance."""
    for module in MODULES:
        exports = import_module(module)
        members = {name: getattr(exports, name) for name in exports.__all__} | _BASES.get(module, {})
        classes = [kind for kind in members.values() if inspect.isclass(kind)]
        for name in sorted(members):
            yield from _described(f"{module}.{name}", members[name], classes)
    yield from (f"python -m bowline.conformance {option}" for option in _options(conformance_parser()))
    yield from (f"python -m bowline.conformance --case {case.name}" for case in SCHEDULER_CASES)


def _options(parser: argparse.ArgumentParser) -> list[str]:
    words = parser.format_help().replace(",", " ").split()
    return sorted({word for word in words if word.startswith("--")})


def _described(path: str, value: Any, classes: Sequence[type]) -> Iterator[str]:
    """Yield the lines of one name; what a class inherits from one of ``classes`` is described there."""
    if isinstance(value, Mapping):
        yield from (f"{path}[{key}]" for key in value)
        return
    if not inspect.isclass(value):
        yield f"{path}{_arguments(value)}"
        return
    bases = [kind for kind in classes if kind in value.__mro__[1:]]
    yield f"{path}({', '.join(sorted(kind.__name__ for kind in bases))})" if bases else path
    if issubclass(value, enum.Enum):
        yield from (f"{path}.{member}" for member in sorted(value.__members__))
        return
    inherited = {name for base in bases for name in _members(base) if _is_same(value, base, name)}
    for name in sorted(_members(value) - inherited):
        yield f"{path}.{name}{_arguments(inspect.getattr_static(value, name, None))}"


def _is_same(kind: type, base: type, name: str) -> bool:
    return inspect.getattr_static(kind, name, None) is inspect.getattr_static(base, name, None)


def _members(kind: type) -> set[str]:
    """Names that Bowline's classes in the hierarchy define, with annotated ones; not those of libraries."""
    own = [base for base in kind.__mro__ if base.__module__.startswith("bowline.")]
    names = {name for base in own for name in (*vars(base), *inspect.get_annotations(base))}
    return {name for name in names if not name.startswith("_") or name in _CALLED}


def _arguments(value: Any) -> str:
    function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
    if not inspect.isfunction(function):
        return ""
    words, keyword_only = [], False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only:
            words.append("*")
        keyword_only = keyword_only or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        star = _STARS.get(parameter.kind, "")
        words.append(f"{star}{parameter.name}{'' if parameter.default is parameter.empty else '='}")
    return f"({', '.join(words)})"


if __name__ == "__main__":
    print("\n".join(lines()))  # noqa: T201
