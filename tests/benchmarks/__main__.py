"""``python -m tests.benchmarks COMMAND [--quick] [--json FILE]``; ``--help`` lists the commands."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvloop

from bowline.runtime.gc import freeze_startup_objects
from tests.benchmarks.bind import FULL, MEDIUM, QUICK, bench_bind, bench_memory, bench_pending
from tests.benchmarks.binders import BinderSizes, bench_binders
from tests.benchmarks.claims import ClaimSizes, bench_claims
from tests.benchmarks.costs import QUICK as QUICK_COSTS
from tests.benchmarks.costs import CostSizes, bench_costs
from tests.benchmarks.hand_over import HandOverSizes, bench_hand_over
from tests.benchmarks.isolation import IsolationSizes, bench_isolation
from tests.benchmarks.latency import LatencySizes, bench_latency
from tests.benchmarks.report import Report, as_json, as_text
from tests.benchmarks.soak import SoakSizes, bench_soak
from tests.benchmarks.volumes import VolumeSizes, bench_volumes
from tests.benchmarks.waiting import WaitingSizes, bench_waiting
from tests.benchmarks.webhooks import QUICK_WEBHOOKS, WebhookSizes, bench_webhooks


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
    "memory": Scenario("memory of the reconciler, a part of bind", bench_memory, {"quick": QUICK, "full": FULL}),
    "pending": Scenario(
        "memory beside pods that wait for their scheduler, a part of bind",
        bench_pending,
        {"quick": QUICK, "full": FULL},
    ),
    "waiting": Scenario(
        "fresh requests beside waiting ones, and what limits them",
        bench_waiting,
        {"quick": WaitingSizes(200, 3), "full": WaitingSizes()},
    ),
    "binders": Scenario(
        "the reconciler beside KAI-Scheduler's binder",
        bench_binders,
        {"quick": BinderSizes(100, 20, 2.0, 1), "full": BinderSizes()},
    ),
    "volumes": Scenario(
        "pods with a volume each, beside kube-scheduler",
        bench_volumes,
        {"quick": VolumeSizes(40, 10, 1), "full": VolumeSizes()},
    ),
    "claims": Scenario(
        "pods with a device claim each, beside kube-scheduler",
        bench_claims,
        {"quick": ClaimSizes(40, 10, 1), "full": ClaimSizes()},
    ),
    "isolation": Scenario(
        "healthy requests beside rejected ones of another namespace",
        bench_isolation,
        {"quick": IsolationSizes(10, (3,), healthy=10, batches=1), "full": IsolationSizes()},
    ),
    "hand-over": Scenario(
        "how long nothing is bound when the leader goes",
        bench_hand_over,
        {"quick": HandOverSizes(1), "full": HandOverSizes()},
    ),
    "soak": Scenario(
        "50,000 requests through one process: its memory and CPU time",
        bench_soak,
        {"quick": SoakSizes(200, 4), "full": SoakSizes()},
    ),
    "webhooks": Scenario(
        "the webhook beside KAI-Scheduler's admission",
        bench_webhooks,
        {"quick": QUICK_WEBHOOKS, "full": WebhookSizes()},
        is_compared=True,
    ),
    "costs": Scenario(
        "the CPU time of a drain by process",
        bench_costs,
        {"quick": QUICK_COSTS, "full": CostSizes()},
        is_compared=True,
    ),
    "latency": Scenario(
        "from a request to its bound pod, at 40 requests a second",
        bench_latency,
        {"quick": LatencySizes(seconds=3.0, turns=1), "full": LatencySizes()},
        is_compared=True,
    ),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Bowline's benchmarks.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for name, scenario in SCENARIOS.items():
        command = commands.add_parser(name, help=scenario.text)
        words = {"quick": "to see that it works; not for quoting", "medium": "in six minutes"}
        for size in scenario.sizes.keys() & words.keys():
            command.add_argument(f"--{size}", dest="size", action="store_const", const=size, help=words[size])
        command.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
        if scenario.is_compared:
            command.add_argument("--checkout", type=Path, metavar="FOLDER", help="another version beside this")
        command.set_defaults(size="full")
    return parser


def main() -> int:
    """Run one benchmark and print its table."""
    options = _parser().parse_args()
    scenario = SCENARIOS[options.command]
    # A garbage collection of the load generator would count as the server's time.
    freeze_startup_objects()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        others = (options.checkout,) if scenario.is_compared else ()
        report = runner.run(scenario.bench(scenario.sizes[options.size], *others))
    print(as_text(report))
    if options.json:
        options.json.write_text(as_json(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
