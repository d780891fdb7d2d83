"""py-spy's samples of a process: stacks, and the packages of their frames. Pure, except for starting py-spy."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

RATE_HZ = 250
THE_REST = "other libraries"
# The package of a frame, by its file; the first match counts.
_OWNERS = (
    (re.compile(r"(bowline_[a-z]+|bowline/[a-z]+)/"), r"\1"),
    (re.compile(r"(.*/)?(asyncio/|ssl\.py|selectors\.py)"), "event loop, TLS, sockets"),
    (re.compile(r"(aiohttp|yarl|multidict)/"), "aiohttp"),
    (re.compile(r"(pydantic|prometheus_client)/"), r"\1"),
)
_WAITING = "wait (threading.py)"
_FRAME = re.compile(r"(?P<name>.*) \((?P<file>[^():]+)\)")


@dataclass(frozen=True, slots=True)
class Stacks:
    """Stacks, outermost frame first, and how often each was sampled."""

    samples: Mapping[tuple[str, ...], int]

    @property
    def total(self) -> int:
        """The number of samples."""
        return sum(self.samples.values())

    def by_owner(self) -> Counter[str]:
        """Samples by the package of the innermost frame."""
        counts: Counter[str] = Counter()
        for stack, times in self.samples.items():
            counts[owner_of(stack[-1])] += times
        return counts

    def under(self) -> Counter[str]:
        """Samples by function of Bowline's: while it, or what it calls, runs."""
        counts: Counter[str] = Counter()
        for stack, times in self.samples.items():
            for frame in set(stack):
                if owner_of(frame).startswith("bowline"):
                    counts[frame] += times
        return counts


def owner_of(frame: str) -> str:
    """Return the package that a frame belongs to."""
    parts = _FRAME.fullmatch(frame)
    for pattern, owner in _OWNERS:
        match = pattern.match(parts["file"]) if parts else None
        if match:
            return match.expand(owner)
    return THE_REST


def parse(text: str) -> Stacks:
    """Read py-spy's raw format: frames joined by semicolons, a blank, a count. Line numbers are dropped.

    Without threads that wait: py-spy samples them as well where the kernel does not show that they are idle.
    """
    counts: Counter[tuple[str, ...]] = Counter()
    for line in text.splitlines():
        stack, _, times = line.rpartition(" ")
        frames = tuple(re.sub(r":\d+\)$", ")", frame) for frame in stack.split(";"))
        if frames[-1] != _WAITING:
            counts[frames] += int(times)
    return Stacks(counts)


def record(pid: int, out: Path) -> "subprocess.Popen[bytes]":
    """Sample a process until it ends, or until this is interrupted. Needs the right to trace it."""
    command = ["record", "--format", "raw", "--rate", str(RATE_HZ), "--output", str(out), "--pid", str(pid)]
    # Its report of missed samples is not needed, and is written to the same place as its errors.
    return subprocess.Popen([Path(sys.executable).parent / "py-spy", *command], stdout=subprocess.DEVNULL)
