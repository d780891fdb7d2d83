"""``python -m tests.availability``: a table of the cost of replacing certificates and replicas. Takes ten minutes.

``--replicas 2,3`` and ``--only WORD`` select; the exit status is 1 if a scenario has cost more than allowed.
"""

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Sequence

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.spec import ClusterSpec
from tests.availability.rig import rig_on
from tests.availability.scenarios import RATE, SCENARIOS, Outcome, play

COLUMNS = (
    *("scenario", "replicas", "pods", "pods/s", "refused", "calls lost", "timed out", "handshakes", "refused"),
    *("p50 ms", "p99 ms", "CA switches", "renewals"),
)


def main() -> int:
    """Run the scenarios and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.availability", description=__doc__)
    parser.add_argument("--replicas", default="2,3", help="numbers of replicas (%(default)s)")
    parser.add_argument("--only", default="", help="scenarios with this word in their name")
    parser.add_argument("--rate", type=float, default=RATE, help="pods a second (%(default)s)")
    flags = parser.parse_args()
    counts = [int(count) for count in flags.replicas.split(",")]
    with Cluster.start(ClusterSpec(kwok=False, controllers=())) as cluster:
        outcomes = asyncio.run(_all(cluster, counts, flags.only, flags.rate))
    bad = [outcome for outcome in outcomes if not outcome.is_good]
    for outcome in bad:
        why = Counter((*outcome.reasons, *outcome.lost_calls, *outcome.refusals))
        sys.stdout.write(f"{outcome.scenario}: more than {outcome.allowed} failed: {dict(why)}\n")
    return 1 if bad or not outcomes else 0


async def _all(cluster: Cluster, counts: list[int], word: str, rate: float) -> list[Outcome]:
    outcomes = []
    async with rig_on(cluster) as rig:
        sys.stdout.write(line(COLUMNS) + "\n")
        for count in counts:
            await rig.scale(count)
            for name, deed in SCENARIOS.items():
                if word in name:
                    outcomes.append(await play(rig, name, deed, rate))
                    sys.stdout.write(line(cells(outcomes[-1])) + "\n")
                    sys.stdout.flush()
                    await rig.scale(count)
    return outcomes


def cells(outcome: Outcome) -> tuple[object, ...]:
    """Return an outcome as a row under ``COLUMNS``."""
    return (
        outcome.scenario,
        outcome.replicas,
        outcome.pods,
        f"{outcome.rate:.0f}",
        outcome.failures,
        len(outcome.lost_calls) - len(outcome.timed_out),
        len(outcome.timed_out),
        outcome.handshakes,
        len(outcome.refusals),
        f"{outcome.p50_ms:.1f}",
        f"{outcome.p99_ms:.1f}",
        outcome.switches,
        outcome.renewals,
    )


def line(row: Sequence[object]) -> str:
    """Return a row of the table."""
    widths = [28, *(max(len(name), 6) + 2 for name in COLUMNS[1:])]
    first, *cells = (f"{cell!s:>{width}}" for cell, width in zip(row, widths, strict=True))
    return first.strip().ljust(widths[0]) + "".join(cells)


if __name__ == "__main__":
    sys.exit(main())
