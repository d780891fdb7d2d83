"""``python -m tests.availability``: the table of what replacing certificates and replicas costs. Takes ten minutes.

``--replicas 2,3`` and ``--only WORD`` choose; the exit status is 1 if a scenario has cost more than it may.
"""

import argparse
import asyncio
import sys
from collections import Counter

from localcluster.cluster import Cluster
from localcluster.spec import ClusterSpec
from tests.availability.rig import rig_on
from tests.availability.scenarios import RATE, SCENARIOS, Outcome, played

HEAD = (
    f"{'scenario':<28}{'replicas':>9}{'pods':>7}{'pods/s':>7}{'refused':>9}{'calls lost':>12}{'timed out':>11}"
    f"{'handshakes':>12}{'refused':>9}{'p50 ms':>8}{'p99 ms':>8}{'CA switches':>13}{'renewals':>10}"
)


def main() -> int:
    """Play the scenarios and print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.availability", description=__doc__)
    parser.add_argument("--replicas", default="2,3", help="numbers of replicas (%(default)s)")
    parser.add_argument("--only", default="", help="scenarios with this word in their name")
    parser.add_argument("--rate", type=float, default=RATE, help="pods a second (%(default)s)")
    given = parser.parse_args()
    counts = [int(count) for count in given.replicas.split(",")]
    with Cluster.start(ClusterSpec(kwok=False, controllers=())) as cluster:
        outcomes = asyncio.run(_all(cluster, counts, given.only, given.rate))
    bad = [outcome for outcome in outcomes if not outcome.is_good]
    for outcome in bad:
        why = Counter((*outcome.reasons, *outcome.lost, *outcome.refused))
        sys.stdout.write(f"{outcome.scenario}: more than {outcome.allowed} failed: {dict(why)}\n")
    return 1 if bad or not outcomes else 0


async def _all(cluster: Cluster, counts: list[int], word: str, rate: float) -> list[Outcome]:
    outcomes = []
    async with rig_on(cluster) as rig:
        sys.stdout.write(HEAD + "\n")
        for count in counts:
            await rig.scale(count)
            for name, deed in SCENARIOS.items():
                if word in name:
                    outcomes.append(await played(rig, name, deed, rate))
                    sys.stdout.write(row(outcomes[-1]) + "\n")
                    sys.stdout.flush()
                    await rig.scale(count)
    return outcomes


def row(outcome: Outcome) -> str:
    """Return an outcome as a line of the table."""
    return (
        f"{outcome.scenario:<28}{outcome.replicas:>9}{outcome.pods:>7}{outcome.rate:>7.0f}{outcome.failures:>9}"
        f"{len(outcome.lost) - len(outcome.timed_out):>12}{len(outcome.timed_out):>11}{outcome.handshakes:>12}{len(outcome.refused):>9}{outcome.p50_ms:>8.1f}{outcome.p99_ms:>8.1f}{outcome.switches:>13}{outcome.renewals:>10}"
    )


if __name__ == "__main__":
    sys.exit(main())
