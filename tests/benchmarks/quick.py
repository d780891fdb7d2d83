"""What a commit costs beside another one, in three minutes: before it is merged, not to be quoted.

Both versions take turns on one control plane, because the machine's speed changes. CPU time is what other work on the
machine disturbs least. Webhooks are called without an API server, by reviews of three pods; a start has the imports,
and that of the reconciler the reads until it is ready. On a busy machine the same code beside itself differs by more
than the noise of three turns: `BASE=HEAD` shows by how much.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

from bowline.kube.client import KubeClient
from bowline.localcluster.checkout import CHECKOUT
from bowline.testing.builders import pod
from tests.benchmarks.costs import CostSizes, drain_cost
from tests.benchmarks.cpu import cpu_s
from tests.benchmarks.drain import NODES, warm_up
from tests.benchmarks.latency import our_latency, percentiles
from tests.benchmarks.load import clear
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.reviews import NAMESPACE, check_answer, filled, review_bodies, share_pod
from tests.benchmarks.rig import HERE, OTHER, READY_S, Rig, resident_mb, rig, source_roots
from tests.benchmarks.webhooks import WebhookSizes, bowline, measure, mutated, write_certificate

CONTAINERS = 50


@dataclass(frozen=True, slots=True)
class QuickSizes:
    """Sizes of all parts."""

    turns: int = 3
    review_s: float = 0.5  # of each review, hook and version in each turn
    rate: int = 40
    rate_s: float = 4.0
    pods: int = 400  # in each drain


@dataclass(frozen=True, slots=True)
class Side:
    """A version. ``against``: the name of the one that it is compared with; empty for that one."""

    name: str
    checkout: Path
    against: str = ""

    def figure(self, text: str, unit: str, value: float) -> Figure:
        """Return a figure of this version."""
        return Figure(f"{self.name}: {text}", unit, (value,), f"{self.against}: {text}" if self.against else "")


@contextmanager
def checkout_of(commit: str) -> Iterator[Path]:
    """Make a folder with the files of a commit until the block ends. Raises CalledProcessError for an unknown one."""
    archive = subprocess.run(["git", "archive", commit], cwd=CHECKOUT, stdout=subprocess.PIPE, check=True).stdout
    with tempfile.TemporaryDirectory(prefix="bowline-base-") as folder:
        with tarfile.open(fileobj=BytesIO(archive)) as files:
            files.extractall(folder, filter="data")
        # As this checkout's code is: otherwise its first start would compile it.
        subprocess.run([sys.executable, "-m", "compileall", "-q", *source_roots(Path(folder))], check=True)
        yield Path(folder)


async def bench_quick(sizes: QuickSizes, checkout: Path | None) -> Report:
    """Measure both versions; takes three minutes. Of a drain, the client is the reconciler.

    Raises ValueError without another checkout.
    """
    if checkout is None:
        raise ValueError("compare needs another version: --base COMMIT or --checkout FOLDER")
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the start"
    report = Report(f"Beside another version, in turns; {load}")
    sides = [Side(OTHER, checkout), Side(HERE, CHECKOUT, OTHER)]
    with rig(NODES) as stage:
        async with await stage.client() as client, await stage.bare() as bare:
            await warm_up(client, bare)
            bodies = await _bodies(client)
            for turn in range(sizes.turns):
                order = sides[::-1] if turn % 2 else sides  # neither is always the first
                _admission(order, bodies, sizes, report)
                for side in order:
                    await _binding(stage, client, side, sizes, report)
    return report


async def _bodies(client: KubeClient) -> dict[str, dict[str, bytes]]:
    """Return the review of each pod for each hook."""
    many = pod("many", NAMESPACE)
    many["spec"]["containers"] = [{"name": f"c{number}", "image": "image"} for number in range(CONTAINERS)]
    pods = {
        "plain": await filled(client, pod("plain", NAMESPACE)),
        "share": await filled(client, share_pod()),
        f"{CONTAINERS} containers": many,
    }
    return {name: await review_bodies(client, body) for name, body in pods.items()}


def _admission(sides: Sequence[Side], bodies: dict[str, dict[str, bytes]], sizes: QuickSizes, report: Report) -> None:
    """Start a webhook of each version, and call both with one review after the other."""
    load = WebhookSizes(seconds=sizes.review_s)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ca = write_certificate(folder)
        webhooks = [stack.enter_context(bowline(side.checkout, folder, ca, side.name)) for side in sides]
        for side, webhook in zip(sides, webhooks, strict=True):
            _started(report, side, "webhook", webhook.pid)
        for name, reviews in bodies.items():
            for hook, body in (("mutate", reviews["mutate"]), ("validate", mutated(reviews["validate"]))):
                for side, webhook in zip(sides, webhooks, strict=True):
                    measurement = measure(webhook, ca, hook, body, load)
                    check_answer(measurement.body, is_patched=(hook, name) == ("mutate", "share"))
                    report.add(side.figure(f"{hook}, {name}: CPU per review", "us", measurement.cpu_us))


async def _binding(stage: Rig, client: KubeClient, side: Side, sizes: QuickSizes, report: Report) -> None:
    """Start the reconciler, bind at a steady rate; then start it on a backlog."""
    with stage.reconciler(checkout=side.checkout) as process:
        process.wait_ready(READY_S)
        _started(report, side, "reconciler", process.pid)
        milliseconds = await our_latency(client, sizes.rate, sizes.rate_s)
    await clear(client)
    for figure in percentiles(f"{side.name}: at {sizes.rate}/s", milliseconds):
        report.add(side.figure(figure.name.partition(": ")[2], figure.unit, figure.median))
    await drain_cost(stage, client, CostSizes(sizes.pods), report, side.name, side.against, side.checkout)


def _started(report: Report, side: Side, process: str, pid: int) -> None:
    """Add what a process has taken until it was ready."""
    report.add(side.figure(f"start of the {process}, CPU", "ms", 1000 * cpu_s({"": pid})[""]))
    report.add(side.figure(f"memory of the idle {process}", "MB", resident_mb(pid)))
