"""Runs the simulation: ``python -m tests.simulation seeds --seconds 60``; ``replay --seed 7`` repeats one run.

A run is repeated exactly only with the same simulation, product and version of Python.
"""

import argparse
import json
import logging
import os
import sys
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from itertools import islice
from multiprocessing import get_context
from typing import TypeVar

from tests.simulation.children import Result, has_fixed_hashes, run_in_child, warm_up
from tests.simulation.coverage import table
from tests.simulation.plans import FOCUSES, focused
from tests.simulation.simulation import Simulation
from tests.simulation.stories import KINDS, STORIES, Scene, Story, is_played, scenes

# Lines of a trace that say nothing about most failures.
_NOISE = ("clusterpol", "devicetaint", "WATCH")
# Of a kind of violation, the runs that are printed.
_SHOWN = 3
# Of so many runs the lines of one are traced.
_TRACED = 10

Run = TypeVar("Run")


class Summary:
    """What a series of runs has shown. ``violations``: by kind, the commands that repeat them, with text and time."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self.violations: dict[str, list[tuple[str, str, float]]] = defaultdict(list)
        self.entered: defaultdict[str, set[int]] = defaultdict(set)
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """The time since the series began."""
        return time.monotonic() - self._began

    def add(self, command: str, result: Result) -> None:
        """Add a run, which ``command`` repeats."""
        self.totals.update(runs=1, steps=result.steps, requests=result.requests, virtual_seconds=int(result.seconds))
        self.counts.update(result.counts or {})
        for name, lines in result.entered.items():
            self.entered[name].update(lines)
        for kind, text, at in result.violations:
            self.violations[kind].append((command, text, at))

    def text(self) -> str:
        """Return the summary for people."""
        lines = [
            f"{', '.join(f'{total} {name}' for name, total in self.totals.items())} in {self.seconds:.0f} s",
            ", ".join(f"{name}: {count}" for name, count in self.counts.most_common()),
        ]
        for kind, examples in sorted(self.violations.items(), key=lambda item: -len(item[1])):
            lines.append(f"VIOLATED in {len(examples)} runs: {kind}")
            for command, text, at in examples[:_SHOWN]:
                lines += [f"  at {at:.3f}: {text[:400]}", f"  replay: {command}"]
        lines.append(f"{len(self.violations)} kinds of violation")
        return "\n".join(lines)

    def as_json(self) -> str:
        """Return the summary for programs."""
        return json.dumps({"totals": self.totals, "counts": self.counts, "violations": self.violations})


def run_seed(seed: tuple[int, str], *, trace: bool = False) -> Result:
    """Run one seed in its focus."""
    traces_lines = "BOWLINE_LINES" in os.environ and seed[0] % _TRACED == 0
    return run_in_child(lambda: Simulation(seed[0], focused(*seed), trace=trace), traces_lines=traces_lines)


def run_scene(scene: Scene, *, trace: bool = False) -> Result:
    """Run one scene."""
    return run_in_child(lambda: Story(scene, trace=trace))


def run_all(run: Callable[[Run], Result], inputs: Iterable[Run], processes: int) -> Iterator[tuple[Run, Result]]:
    """Yield each input and its result in order; ``processes`` runs go on at once, few ahead of what is taken."""
    remaining = iter(inputs)
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        pending: deque[tuple[Run, Future[Result]]] = deque()
        while True:
            for run_input in islice(remaining, 2 * processes - len(pending)):
                pending.append((run_input, pool.submit(run, run_input)))
            if not pending:
                return
            run_input, future = pending.popleft()
            yield run_input, future.result()


def run_seeds(seeds: Iterable[tuple[int, str]], seconds: float, processes: int) -> Summary:
    """Run seeds, each in its focus, until the time is over."""
    summary = Summary()
    for (seed, focus), result in run_all(run_seed, seeds, processes):
        summary.add(f"make simulate SEED={seed} FOCUS={focus}", result)
        if summary.seconds > seconds:
            break
    return summary


def run_stories(kinds: Sequence[str], stories: Sequence[str], seconds: float, part: str, processes: int) -> Summary:
    """Run every scene of the stories, or part ``n/m`` of them, until the time is over."""
    summary = Summary()
    number, parts = map(int, part.split("/"))
    place = 0
    for undisturbed in (Scene(kind, story) for kind in kinds for story in stories if is_played(kind, story)):
        result = run_scene(undisturbed)
        summary.add(f"make simulate SCENE='{undisturbed}'", result)
        disturbed_scenes = list(scenes(undisturbed.kind, undisturbed.story, len(result.happened), result.happened))
        selection = disturbed_scenes[(number - place) % parts :: parts]
        place += len(disturbed_scenes)
        for scene, result in run_all(run_scene, selection, processes):
            summary.add(f"make simulate SCENE='{scene}'", result)
            if summary.seconds > seconds:
                return summary
        print(f"{undisturbed}: {len(selection)} runs, {len(summary.violations)} kinds of violation", file=sys.stderr)
    return summary


def show(result: Result) -> int:
    """Print a run; returns how many violations it has."""
    print("\n".join(line for line in result.trace if not any(word in line for word in _NOISE)))
    print("\n".join(f"[{at:9.3f}] {kind}: {text}" for kind, text, at in result.violations) or "no violation")
    return len(result.violations)


def replay(arguments: argparse.Namespace) -> int:
    """Repeat one run with its trace."""
    if arguments.scene:
        return show(run_scene(Scene.parse(arguments.scene), trace=True))
    return show(run_seed((arguments.seed, arguments.focus), trace=True))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    seeds = commands.add_parser("seeds", help="run random seeds")
    seeds.add_argument("--first", type=int, help="the first seed; by default one that follows from the time")
    seeds.add_argument("--count", type=int, default=1_000_000)
    seeds.add_argument("--focus", default="", help=f"{', '.join(FOCUSES)}; by default all in turn")
    seeds.add_argument("--lines", action="store_true", help="print which lines of the product were entered")
    stories = commands.add_parser("stories", help="run every fault at every request of every story")
    stories.add_argument("--kinds", default=",".join(KINDS))
    stories.add_argument("--stories", default=",".join(STORIES))
    stories.add_argument("--part", default="0/1", help="3/20: the third of twenty parts; 0/20 is the last")
    for command in (seeds, stories):
        command.add_argument("--seconds", type=float, default=1e9)
        command.add_argument("--json", action="store_true")
        command.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="runs at once")
    repeat = commands.add_parser("replay", help="repeat one run, with its trace")
    repeat.add_argument("--seed", type=int, default=0)
    repeat.add_argument("--focus", default=FOCUSES[0])
    repeat.add_argument("--scene", default="", help="KIND/STORY/FAULT/NUMBER")
    return parser


def main() -> int:
    """Run the command; returns the number of violations."""
    arguments = _parser().parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    warm_up()
    if arguments.command == "replay":
        return replay(arguments)
    if arguments.command == "stories":
        kinds, stories = arguments.kinds.split(","), arguments.stories.split(",")
        summary = run_stories(kinds, stories, arguments.seconds, arguments.part, arguments.processes)
    else:
        if arguments.lines:
            os.environ["BOWLINE_LINES"] = "yes"
        first = arguments.first if arguments.first is not None else int(time.time())
        focuses = arguments.focus.split(",") if arguments.focus else FOCUSES
        seeds = ((seed, focuses[seed % len(focuses)]) for seed in range(first, first + arguments.count))
        summary = run_seeds(seeds, arguments.seconds, arguments.processes)
    print(summary.as_json() if arguments.json else summary.text())
    if summary.entered:
        print(table(summary.entered))
    return len(summary.violations)


if __name__ == "__main__":
    if not has_fixed_hashes():
        environ = {**os.environ, "PYTHONHASHSEED": "0"}
        os.execve(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]], environ)  # noqa: S606 - itself
    sys.exit(min(main(), 1))
