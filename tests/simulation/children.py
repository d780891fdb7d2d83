"""A run in a child process: equal seeds start from equal state, and tasks that never end go with the child."""

import gc
import json
import os
import sys
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import bowline.kube.transport  # noqa: F401 - imported once, not in each child
from bowline.api.bindrequest import decode_spec
from bowline.plugins.catalog import build_plugins
from tests.simulation.coverage import entering
from tests.simulation.reconciler import settings_of
from tests.simulation.simulation import Simulation


@dataclass(frozen=True, slots=True)
class Result:
    """What a run has shown. ``violations``: kind, text, virtual time; an exception of the simulation is one."""

    violations: list[tuple[str, str, float]]
    steps: int = 0
    requests: int = 0
    seconds: float = 0.0
    counts: dict[str, int] | None = None
    happened: tuple[str, ...] = ()
    trace: tuple[str, ...] = ()
    entered: dict[str, list[int]] = field(default_factory=dict)  # lines of the product, by module

    @property
    def kinds(self) -> set[str]:
        """The kinds of violation."""
        return {kind for kind, _, _ in self.violations}


def has_fixed_hashes() -> bool:
    """Return whether equal runs are equal: sets of strings iterate in an order that follows from the hash seed."""
    return not sys.flags.hash_randomization


def warm_up() -> None:
    """Build what is built at its first use, before the children are made."""
    build_plugins(settings_of({}))
    decode_spec({"podName": "p", "selectedNode": "n"})


def run_in_child(new_simulation: Callable[[], Simulation], *, traces_lines: bool = False) -> Result:
    """Run a simulation in a forked child."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        gc.disable()
        try:
            result = _traced(new_simulation) if traces_lines else _run(new_simulation)
        except BaseException as error:  # noqa: BLE001 - the parent reports it
            why = f"{error!r}\n{traceback.format_exc()}"
            result = Result([("simulation error", why, 0.0)])
        with os.fdopen(write, "wb") as pipe:
            pipe.write(json.dumps(asdict(result)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    if not data:
        return Result([("simulation error", "the child died", 0.0)])
    content: dict[str, Any] = json.loads(data)
    content["violations"] = [(kind, text, at) for kind, text, at in content["violations"]]
    return Result(**content)


def _traced(new_simulation: Callable[[], Simulation]) -> Result:
    result, entered = entering(lambda: _run(new_simulation))
    return replace(result, entered={name: sorted(lines) for name, lines in entered.items()})


def _run(new_simulation: Callable[[], Simulation]) -> Result:
    simulation = new_simulation()
    report = simulation.run()
    return Result(
        [(violation.kind, violation.text, violation.at) for violation in report.violations],
        report.steps,
        report.requests,
        report.seconds,
        report.counts,
        tuple(report.happened),
        tuple(simulation.trace or ()),
    )
