"""``python -m tests.benchmarks COMMAND [--quick] [--json FILE]``; ``--help`` lists the commands."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import uvloop

from bowline.runtime.gc import freeze_startup_objects
from tests.benchmarks.admission import QUICK as QUICK_ADMISSION
from tests.benchmarks.admission import AdmissionSizes, bench_admission
from tests.benchmarks.bind import FULL, MEDIUM, QUICK, bench_bind, bench_memory, bench_pending
from tests.benchmarks.binders import BinderSizes, bench_binders
from tests.benchmarks.claims import ClaimSizes, bench_claims
from tests.benchmarks.costs import QUICK as QUICK_COSTS
from tests.benchmarks.costs import CostSizes, bench_costs
from tests.benchmarks.crowds import CrowdSizes, bench_crowds
from tests.benchmarks.hand_over import HandOverSizes, bench_hand_over
from tests.benchmarks.idle import IdleProcessSizes, bench_idle
from tests.benchmarks.idle_plugins import IdleSizes, bench_idle_plugins
from tests.benchmarks.isolation import IsolationSizes, bench_isolation
from tests.benchmarks.latency import LatencySizes, bench_latency
from tests.benchmarks.lint import QUICK as QUICK_LINT
from tests.benchmarks.lint import LintSizes, bench_lint
from tests.benchmarks.many_claims import ManySizes, bench_many_claims
from tests.benchmarks.policies import QUICK as QUICK_POLICIES
from tests.benchmarks.policies import PolicySizes, bench_policies
from tests.benchmarks.report import Report, as_json, as_text
from tests.benchmarks.review_cpu import QUICK as QUICK_REVIEWS
from tests.benchmarks.review_cpu import ReviewSizes, bench_reviews
from tests.benchmarks.soak import SoakSizes, bench_soak
from tests.benchmarks.volumes import VolumeSizes, bench_volumes
from tests.benchmarks.waiting import WaitingSizes, bench_waiting
from tests.benchmarks.webhooks import QUICK_WEBHOOKS, WebhookSizes, bench_webhooks
from tests.benchmarks.writers import WriterSizes, bench_writers

MANY = {
    "quick": ManySizes(500, 50, 10.0, (6.0,)),
    "medium": ManySizes(10_000, 2000, 30.0, (15.0, 30.0)),
    "full": ManySizes(),
}


def _soak(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.set_defaults(run=lambda options: bench_soak(SoakSizes(200, 4) if options.size == "quick" else SoakSizes()))
    return parser


def _neighbours(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> Sequence[argparse.ArgumentParser]:
    """Add the commands that measure healthy requests beside what others do."""
    isolation = commands.add_parser("isolation", help="healthy requests beside rejected ones of another namespace")
    isolation.set_defaults(
        run=lambda options: bench_isolation(
            IsolationSizes(10, (3,), healthy=10, batches=1) if options.size == "quick" else IsolationSizes()
        )
    )
    writers = commands.add_parser("writers", help="healthy requests beside writers of large pods")
    writers.set_defaults(
        run=lambda options: bench_writers(WriterSizes(2, 10, 1) if options.size == "quick" else WriterSizes())
    )
    hand_over = commands.add_parser("hand-over", help="how long nothing is bound when the leader goes")
    hand_over.set_defaults(
        run=lambda options: bench_hand_over(HandOverSizes(1) if options.size == "quick" else HandOverSizes())
    )
    crowds = commands.add_parser("crowds", help="healthy requests beside thousands that wait for the same")
    crowds.set_defaults(
        run=lambda options: bench_crowds(CrowdSizes(50, 10, 10, 1) if options.size == "quick" else CrowdSizes())
    )
    return isolation, writers, hand_over, crowds


def _versions(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> Sequence[argparse.ArgumentParser]:
    """Add the commands that compare with another version of Bowline, in turns."""
    webhooks = commands.add_parser("webhooks", help="the webhook beside KAI-Scheduler's, a part of admission")
    webhooks.set_defaults(
        run=lambda options: bench_webhooks(
            QUICK_WEBHOOKS if options.size == "quick" else WebhookSizes(), options.checkout
        )
    )
    costs = commands.add_parser("costs", help="the CPU time of a drain, by process and function")
    costs.set_defaults(
        run=lambda options: bench_costs(QUICK_COSTS if options.size == "quick" else CostSizes(), options.checkout)
    )
    latency = commands.add_parser("latency", help="from a request to its bound pod, at 40 requests a second")
    latency.set_defaults(
        run=lambda options: bench_latency(
            LatencySizes(seconds=3.0, turns=1) if options.size == "quick" else LatencySizes(), options.checkout
        )
    )
    for command in (webhooks, costs, latency):
        command.add_argument("--checkout", type=Path, metavar="FOLDER", help="another version of Bowline beside this")
    return webhooks, costs, latency


def _parser() -> argparse.ArgumentParser:
    """Return the parser; ``run`` of its result takes the options and starts the benchmark."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Bowline's benchmarks.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    bind = commands.add_parser("bind", help="binding: throughput, latency and memory beside the API server's ceiling")
    bind.set_defaults(run=lambda options: bench_bind({"quick": QUICK, "medium": MEDIUM, "full": FULL}[options.size]))
    bind.add_argument("--medium", dest="size", action="store_const", const="medium", help="in six minutes")
    binders = commands.add_parser("binders", help="the reconciler beside KAI-Scheduler's binder")
    binders.set_defaults(
        run=lambda options: bench_binders(BinderSizes(100, 20, 2.0, 1) if options.size == "quick" else BinderSizes())
    )
    claims = commands.add_parser("claims", help="pods with a volume or device claim each, beside kube-scheduler")
    claims.set_defaults(run=_claims)
    admission = commands.add_parser("admission", help="the webhook beside a static answer, and its cost per pod")
    admission.set_defaults(
        run=lambda options: bench_admission(QUICK_ADMISSION if options.size == "quick" else AdmissionSizes())
    )
    policies = commands.add_parser("policies", help="the cost of the chart's policies for a write of a large pod")
    policies.set_defaults(
        run=lambda options: bench_policies(QUICK_POLICIES if options.size == "quick" else PolicySizes())
    )
    reviews = commands.add_parser("reviews", help="CPU time of a review by itself")
    reviews.set_defaults(
        run=lambda options: bench_reviews(QUICK_REVIEWS if options.size == "quick" else ReviewSizes())
    )
    idle = commands.add_parser("idle-plugins", help="an attempt with ten plugins that override nothing, beside none")
    idle.set_defaults(
        run=lambda options: bench_idle_plugins(IdleSizes(2, 100) if options.size == "quick" else IdleSizes())
    )
    lint = commands.add_parser("lint", help="bowline lint: its start, and thousands of files")
    lint.add_argument("--folder", type=Path, metavar="FOLDER", help="with manifests to copy instead of the examples")
    lint.set_defaults(
        run=lambda options: bench_lint(QUICK_LINT if options.size == "quick" else LintSizes(), options.folder)
    )
    memory = commands.add_parser("memory", help="memory of the reconciler, a part of bind by itself")
    memory.set_defaults(run=lambda options: bench_memory(QUICK if options.size == "quick" else FULL))
    pending = commands.add_parser("pending", help="memory beside pods that wait for their scheduler, a part of bind")
    pending.set_defaults(run=lambda options: bench_pending(QUICK if options.size == "quick" else FULL))
    waiting = commands.add_parser("waiting", help="fresh requests beside waiting ones, and what limits them")
    waiting.set_defaults(
        run=lambda options: bench_waiting(WaitingSizes(200, 3) if options.size == "quick" else WaitingSizes())
    )
    soak = _soak(commands.add_parser("soak", help="50,000 requests through one process: its memory and CPU time"))
    neighbours = _neighbours(commands)
    versions = _versions(commands)
    at_rest = commands.add_parser("idle", help="CPU time of the processes while nothing happens")
    at_rest.set_defaults(
        run=lambda options: bench_idle(
            IdleProcessSizes(20, 5.0, 10.0) if options.size == "quick" else IdleProcessSizes()
        )
    )
    many = commands.add_parser("many-claims", help="what claims without work cost")
    many.set_defaults(run=lambda options: bench_many_claims(MANY[options.size]))
    many.add_argument("--medium", dest="size", action="store_const", const="medium", help="in five minutes")
    _add_sizes(
        bind,
        binders,
        claims,
        admission,
        policies,
        reviews,
        idle,
        lint,
        memory,
        pending,
        waiting,
        soak,
        *neighbours,
        *versions,
        at_rest,
        many,
    )
    return parser


def _add_sizes(*commands: argparse.ArgumentParser) -> None:
    for command in commands:
        command.set_defaults(size="full")
        command.add_argument(
            "--quick",
            dest="size",
            action="store_const",
            const="quick",
            help="small sizes, to see that it works; not for quoting",
        )
        command.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")


def main() -> int:
    """Run one benchmark and print its table."""
    options = _parser().parse_args()
    # A garbage collection of the load generator would count as the server's time.
    freeze_startup_objects()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(options.run(options))
    print(as_text(report))
    if options.json:
        options.json.write_text(as_json(report))
    return 0


async def _claims(options: argparse.Namespace) -> Report:
    quick = options.size == "quick"
    volumes = await bench_volumes(VolumeSizes(40, 10, 1, late_pods=10) if quick else VolumeSizes())
    devices = await bench_claims(ClaimSizes(40, 10, 1) if quick else ClaimSizes())
    return Report("Pods with a claim each, one run on one machine", [*volumes.figures, *devices.figures])


if __name__ == "__main__":
    sys.exit(main())
