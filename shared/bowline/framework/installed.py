"""Whether what is installed are the versions that this Bowline is made for: a plugin's dependencies may replace them.

pip installs what the last distribution asks for, and only warns. So the versions are compared when the plugins are:
with the ranges of Bowline's own metadata, which the locks in ``requirements/`` are derived from, and in an image also
with the exact versions that the image is locked to. Reads what is installed, and nothing else.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final

from bowline.api.field_error import FieldError
from bowline.api.rule import Rule
from bowline.runtime.version import DISTRIBUTION

# Written by the Dockerfile.
LOCK: Final = Path(sys.prefix) / "etc/bowline/constraints.txt"
VERSION: Final = Rule(
    "install/version",
    "a dependency of Bowline is installed in a version that this Bowline is not made for; a plugin's distribution "
    "may have replaced it",
)
RULES: Final = (VERSION,)

_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(?P<bounds>[^;]*)(;.*)?")
_BOUND = re.compile(r"(?P<operator>>=|<)(?P<version>\d+(\.\d+)*)")
_RELEASE = re.compile(r"\d+(\.\d+)*")


def version_errors(requirements: Iterable[str] | None = None, lock: Path = LOCK) -> Iterator[FieldError]:
    """Yield an error for each installed distribution whose version is out of range, or is not that of the lock.

    ``requirements``: as in the metadata of a distribution; None: Bowline's own. What is not installed is no error: an
    extra may be missing, and a checkout that was never installed has no metadata.
    """
    own = _own_requirements() if requirements is None else requirements
    locked = _locked(lock)
    remedy = f"install the plugin's distribution again with --constraint={lock}" if locked else "install one of them"
    for name, bounds in dict(map(_parsed, own)).items():
        present_version = _installed(name)
        if present_version is not None and name not in locked and not _is_within(present_version, bounds):
            yield _error(name, present_version, f"must be {bounds}; {remedy}")
    for name, expected in locked.items():
        present_version = _installed(name)
        if present_version not in (None, expected):
            yield _error(name, present_version, f"must be {expected}, to which this image is locked; {remedy}")


def _error(name: str, present_version: str | None, message: str) -> FieldError:
    return FieldError(VERSION, f"installed[{name}]", present_version, message)


@cache
def _own_requirements() -> Iterable[str]:
    try:
        return requires(DISTRIBUTION) or ()
    except PackageNotFoundError:
        return ()


def _locked(lock: Path) -> dict[str, str]:
    lines = lock.read_text(encoding="utf-8").split() if lock.is_file() else []
    return {name: text for name, _, text in (line.partition("==") for line in lines)}


@cache  # reading it costs a parser of the distribution's whole description
def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _parsed(requirement: str) -> tuple[str, str]:
    match = _REQUIREMENT.fullmatch(requirement)
    return (match["name"], match["bounds"].strip()) if match is not None else (requirement, "")


def _is_within(present_version: str, bounds: str) -> bool:
    """Return whether the version is within the bounds. Bowline's own are ``>=`` and ``<``; a test compares."""
    release = _release(present_version)
    return all(
        release >= _release(bound["version"]) if bound["operator"] == ">=" else release < _release(bound["version"])
        for bound in _BOUND.finditer(bounds)
    )


def _release(text: str) -> tuple[int, ...]:
    """Return the numbers of a version, without what marks a pre-release, and without zeros at the end."""
    match = _RELEASE.match(text)
    numbers = [int(number) for number in match[0].split(".")] if match is not None else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
