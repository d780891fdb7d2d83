"""Simulates until the first violation: ``python -m tests.mutants.simulated FOCUS KIND/STORY KIND/STORY/FAULT``.

The runs of several are taken in turn. Equal numbers are equal runs.
"""

import argparse
import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, islice

from tests.simulation.children import run_in_child, warm_up
from tests.simulation.network import Fault
from tests.simulation.plans import focused
from tests.simulation.simulation import Simulation
from tests.simulation.stories import Scene, Story, scenes

_FIRST_SEED = 20_000

NewSimulation = Callable[[], Simulation]


def simulations(what: str) -> Iterator[tuple[str, NewSimulation]]:
    """Yield the runs of a focus, which do not end, or of a story, each with its name."""
    if "/" not in what:
        for seed in count(_FIRST_SEED):
            yield f"seed {seed} of {what}", lambda seed=seed: Simulation(seed, focused(seed, what))  # type: ignore[misc]
    kind, story, *fault = what.split("/")
    undisturbed = Scene(kind, story)
    yield str(undisturbed), partial(Story, undisturbed)
    requests = len(run_in_child(partial(Story, undisturbed)).happened)
    for scene in scenes(kind, story, requests):
        if not fault or scene.fault == Fault(*fault):
            yield str(scene), partial(Story, scene)


def in_turn(all_of_them: list[Iterator[tuple[str, NewSimulation]]]) -> Iterator[tuple[str, NewSimulation]]:
    """Yield one of each in turn, until all have ended."""
    while all_of_them:
        for simulation in list(all_of_them):
            run = next(simulation, None)
            if run is None:
                all_of_them.remove(simulation)
            else:
                yield run


def main() -> int:
    """Run the command; returns 1 after a violation."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.simulated", description=__doc__)
    parser.add_argument("what", nargs="+")
    parser.add_argument("--runs", type=int, default=sys.maxsize)
    parser.add_argument("--only", type=int, help="the number of one run")
    options = parser.parse_args()
    logging.getLogger().setLevel(logging.ERROR)
    warm_up()
    first, runs = (0, options.runs) if options.only is None else (options.only, options.only + 1)
    for number, (name, new_simulation) in enumerate(islice(in_turn([*map(simulations, options.what)]), runs)):
        if number < first:
            continue
        kinds = run_in_child(new_simulation).kinds
        if kinds:
            print(f"VIOLATED: run {number}: {name}: {'; '.join(sorted(kinds))}", flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
