"""Records how often a call path changes modules, for the tests that bound it."""

import asyncio
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType


@contextmanager
def recorded_stops(
    start: CodeType, path: Sequence[str], exclusions: Sequence[str], tasks: Collection[str] = ()
) -> Iterator[list[str]]:
    """Record ``folder/module.function`` at each change of module, from the first call of ``start`` to its next one.

    ``path`` and ``excluded`` are parts of the file names that belong to the path, and that do not; ``tasks`` are the
    names of the asyncio tasks that are recorded, all if empty.
    """
    stops: list[str] = []
    frames: set[FrameType] = set()  # a coroutine that continues is reported as called again
    starts = 0

    def on_event(frame: FrameType, event: str, _: object) -> None:
        nonlocal starts
        file, code = frame.f_code.co_filename, frame.f_code
        if event != "call" or frame in frames or code.co_name.startswith("<"):
            return
        if any(part in file for part in exclusions) or not any(part in file for part in path):
            return
        if tasks and _task_name() not in tasks:
            return
        frames.add(frame)
        starts += code is start
        module = "/".join(file.removesuffix(".py").split("/")[-2:])
        if starts == 1 and (not stops or module_of(stops[-1]) != module):
            stops.append(f"{module}.{code.co_name}")

    sys.setprofile(on_event)
    try:
        yield stops
    finally:
        sys.setprofile(None)


def returns_of(stops: Sequence[str]) -> int:
    """Return how many stops are in a module that the path had left before."""
    return len(stops) - len(set(map(module_of, stops)))


def module_of(stop: str) -> str:
    """Return the module of a stop."""
    return stop.rpartition(".")[0]


def _task_name() -> str:
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return ""
    return task.get_name() if task is not None else ""
