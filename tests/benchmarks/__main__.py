"""``python -m tests.benchmarks COMMAND [--quick] [--record]``; ``--help`` lists the commands."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from bowline.runtime.tasks import freeze_startup_objects
from tests.benchmarks.beside import BesideSizes, bench_beside
from tests.benchmarks.bind import FULL, MEDIUM, QUICK, bench_bind
from tests.benchmarks.binders import BinderSizes, bench_binders
from tests.benchmarks.costs import CostSizes, bench_costs
from tests.benchmarks.figures_page import record, result_of
from tests.benchmarks.hand_over import HandOverSizes, bench_hand_over
from tests.benchmarks.latency import LatencySizes, bench_latency
from tests.benchmarks.report import Report, as_text
from tests.benchmarks.rig import checkout_of
from tests.benchmarks.scheduler import SchedulerSizes, bench_scheduler
from tests.benchmarks.soak import SoakSizes, bench_soak
from tests.benchmarks.webhooks import WebhookSizes, bench_webhooks

SIZES = {"quick": "to see that it works; not for quoting", "medium": "in six minutes", "full": ""}


@dataclass(frozen=True, slots=True)
class Scenario:
    """What one command measures. ``sizes``: by name. ``is_compared``: with another version of Bowline, in turns."""

    text: str
    bench: Callable[..., Coroutine[Any, Any, Report]]
    sizes: Mapping[str, Any]
    is_compared: bool = False


SCENARIOS = {
    "bind": Scenario(
        "binding: throughput, latency and memory beside the API server's ceiling",
        bench_bind,
        {"quick": QUICK, "medium": MEDIUM, "full": FULL},
    ),
    "binders": Scenario(
        "the reconciler beside KAI-Scheduler's binder",
        bench_binders,
        {"quick": BinderSizes(100, 20, 2.0, 1), "full": BinderSizes()},
    ),
    "scheduler": Scenario(
        "pods with a volume or a device each, beside kube-scheduler",
        bench_scheduler,
        {"quick": SchedulerSizes(40, 10, 1), "full": SchedulerSizes()},
    ),
    "hand-over": Scenario(
        "how long nothing is bound when the leader goes",
        bench_hand_over,
        {"quick": HandOverSizes(1), "full": HandOverSizes()},
    ),
    "beside": Scenario(
        "healthy requests beside hanging namespaces, a hanging group, 10,000 that wait",
        bench_beside,
        {"quick": BesideSizes(20, 10, 2, 5, 300, seconds=2.0, turns=1), "full": BesideSizes()},
    ),
    "soak": Scenario(
        "50,000 requests through one process: its memory and CPU time",
        bench_soak,
        {"quick": SoakSizes(200, 4), "full": SoakSizes()},
    ),
    "webhooks": Scenario(
        "the webhook beside KAI-Scheduler's admission",
        bench_webhooks,
        {"quick": WebhookSizes(seconds=0.3, rounds=2), "full": WebhookSizes()},
        is_compared=True,
    ),
    "costs": Scenario(
        "the CPU time of a drain by process",
        bench_costs,
        {"quick": CostSizes(pods=300, turns=1), "full": CostSizes()},
        is_compared=True,
    ),
    "latency": Scenario(
        "from a request to its bound pod, at 40 requests a second",
        bench_latency,
        {"quick": LatencySizes(seconds=3.0, turns=1), "full": LatencySizes()},
        is_compared=True,
    ),
}


def main() -> int:
    """Run one benchmark and print its table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Bowline's benchmarks.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, scenario in SCENARIOS.items():
        command = commands.add_parser(name, help=scenario.text)
        for size in scenario.sizes.keys() - {"full"}:
            command.add_argument(f"--{size}", dest="size", action="store_const", const=size, help=SIZES[size])
        command.add_argument("--record", action="store_true", help="write the figures to docs/figures.md too")
        command.add_argument("--notes", default="", help="what a reader of these figures must know of the run")
        if scenario.is_compared:
            other = command.add_mutually_exclusive_group()
            other.add_argument("--checkout", type=Path, metavar="FOLDER", help="another version beside this")
            other.add_argument("--base", metavar="COMMIT", help="the version of a commit beside this")
        command.set_defaults(size="full")
    options = parser.parse_args()
    scenario = SCENARIOS[options.command]
    # A garbage collection of the load generator would count as the server's time.
    freeze_startup_objects()
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
        checkouts: tuple[Path | None, ...] = (options.checkout,) if scenario.is_compared else ()
        if scenario.is_compared and options.base:
            checkouts = (stack.enter_context(checkout_of(options.base)),)
        report = runner.run(scenario.bench(scenario.sizes[options.size], *checkouts))
    print(as_text(report))
    if options.record:
        size = "" if options.size == "full" else f" --{options.size}"
        record(f"{options.command}{size}", result_of(report, options.notes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
