"""The storm: thousands of pods while calls fail, leaders are killed, nodes are deleted, pods and requests recreated.

    python -m tests.faults.storm --pods 10000

At the end every request is Succeeded with its pod on its node, or Failed with a true reason, and no object is left
over. Printed as a table; exits with 1 on any violation. What is true at each moment, the simulation checks.

Calls fail and leaders are killed until all requests have ended except those that wait for a gate that never opens:
they end a minute after the storm, because a short outage of contact with the API server resets that.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tests.faults.administrator import Administrator, administrator, list_pages
from tests.faults.lab import CONFIG, Reconciler, open_lab
from tests.faults.plugins.fault_effects import OWNER
from tests.faults.weather import Weather, failed_share, leader_killer, storm_rules
from tests.faults.world import EFFECTS, NAMESPACE, NEVER_ENDS, NODES, PODS, REQUESTS, VANISHING, Asked, Wait, World

# Of the API server, and so the time before a new leader's first rollback. Leaders must live longer than that, or no
# failure would ever end.
REQUEST_TIMEOUT_S = 3
LEADER_LIVES_S = (20, 30)
# How often the leader's age is checked.
_CHECK_S = (0.2, 0.4)
# From a request's creation. No wait reaches it before the storm is over, and by then all gates that open are open.
WAIT_TIMEOUT_S = 30
# Pods and requests are recreated for so long after the last of them was submitted.
_RESTLESS_S = 10
_UNENDED = "fieldSelector=status.phase!=Succeeded,status.phase!=Failed"
_FAILED = "fieldSelector=status.phase=Failed"
_SHOWN = 10


def unfinished_requests(api: Administrator, *, waiting: bool) -> list[str]:
    """Return some requests that have not ended or are still held by something of ours; empty if there are none.

    ``waiting``: also those that wait for what never exists. A few suffice: this is called every second while there
    are thousands.
    """
    among = _UNENDED if waiting else f"{_UNENDED}&labelSelector=!{NEVER_ENDS}"
    left = [request["metadata"]["name"] for request in islice(list_pages(api, REQUESTS, among, _SHOWN), _SHOWN)]
    # One query after the other: if there are some of the first kind, the second is not needed.
    return left or [
        request["metadata"]["name"]
        for request in list_pages(api, REQUESTS, _FAILED)
        if request["metadata"].get("finalizers")
    ]


def classify(
    request: Mapping[str, Any], intent: Asked, deleted_nodes: set[str], pods: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return the end of a request: Succeeded, its reason, or what is untrue about it."""
    status = request.get("status") or {}
    if status.get("phase") not in ("Succeeded", "Failed"):
        return "not ended"
    pod = pods.get(request["spec"]["podName"])
    is_there = pod is not None and pod["metadata"]["uid"] == intent.pod_uid
    node = pod["spec"].get("nodeName", "") if pod is not None and is_there else ""
    if status["phase"] == "Succeeded":
        is_true = intent.wait is not Wait.NEVER and (node == intent.node or not is_there)
        return "Succeeded" if is_true else "UNTRUE Succeeded"
    reason = str(status["reason"]).partition(":")[0]
    truth = {
        "NodeGone": intent.node in deleted_nodes and node != intent.node,
        "PodGone": not is_there,
        "Rejected": intent.refused and node != intent.node,
        "BoundElsewhere": node not in ("", intent.node),
        "BackoffLimitExceeded": node != intent.node and (status.get("failedAttempts") or 0) > 0,
        "WaitTimeout": intent.wait is Wait.NEVER and node != intent.node,
    }
    return f"Failed, {reason}" if truth.get(reason, False) else f"UNTRUE {reason}"


def examine(world: World) -> Counter[str]:
    """Check all objects at the end."""
    api = world.api
    pods = {item["metadata"]["name"]: item for item in list_pages(api, PODS)}
    table: Counter[str] = Counter()
    for request in list_pages(api, REQUESTS):
        intent = world.asked[request["metadata"]["uid"]]
        table[classify(request, intent, world.deleted_nodes, pods)] += 1
        table["leftover finalizers"] += bool(request["metadata"].get("finalizers"))
    present = {item["metadata"]["uid"]: item["spec"].get("nodeName", "") for item in pods.values()}
    node_of = world.last_nodes | present
    for effect in list_pages(api, EFFECTS, f"labelSelector={OWNER}"):
        intent = world.asked[effect["metadata"]["labels"][OWNER]]
        # A delete without a reply does not say whether its pod was bound.
        table["leftover effects"] += node_of.get(intent.pod_uid, intent.node) != intent.node
    return table


@dataclass(frozen=True, slots=True)
class Storm:
    """How many pods, from which seed, and the time limit."""

    count: int
    seed: int
    deadline: float


def rage(world: World, pair: Sequence[Reconciler], storm: Storm) -> Mapping[str, int]:
    """Run the storm until no request is left that could end in it; returns the counts of what it did, by name."""
    for reconciler in pair:
        reconciler.proxy.add(*storm_rules())
    with Weather(storm.seed) as weather, Weather(storm.seed + 1) as people:
        weather.every(_CHECK_S, "leaders killed", leader_killer(pair, LEADER_LIVES_S))
        people.every((1, 4), "nodes vanished", world.vanish_node)
        people.every((2, 6), "times gates were opened", world.open_gates)
        people.every((0.2, 0.6), "pods remade", world.remake_pod)
        people.every((0.2, 0.6), "requests remade", world.remake_request)
        began = time.monotonic()
        world.submit_all(storm.count, storm.seed)
        submitting_s = round(time.monotonic() - began)
        time.sleep(_RESTLESS_S)
        people.calm()
        world.open_gates(random.Random(storm.seed))  # noqa: S311 - not used
        await_all(world.api, storm.deadline, waiting=False)
        weather.calm()
    for reconciler in pair:
        reconciler.proxy.clear()
    waits = {
        f"asked to wait for {wait.value}": number for wait, number in world.waits.items() if wait is not Wait.NOTHING
    }
    return {"seconds until all were submitted": submitting_s, **weather.counts, **people.counts, **waits}


def await_all(api: Administrator, deadline: float, *, waiting: bool) -> list[str]:
    """Wait until all requests have ended; returns those that have not at the deadline."""
    while (names := unfinished_requests(api, waiting=waiting)) and time.monotonic() < deadline:
        time.sleep(1)
    return names


def run(count: int, seed: int, patience_s: float) -> bool:
    """Run a storm, wait for its end, print the results; returns whether they are all correct."""
    config = {
        **CONFIG,
        "config.binding.inFlightTimeout": f"{REQUEST_TIMEOUT_S}s",
        "config.binding.waitTimeout": f"{WAIT_TIMEOUT_S}s",
    }
    flags = (f"--request-timeout={REQUEST_TIMEOUT_S}s",)
    with open_lab(config, NODES, flags) as lab, ExitStack() as stack:
        lab.cluster.make_nodes(VANISHING, prefix="vanishing")
        lab.cluster.make_namespace(NAMESPACE)
        api = stack.enter_context(closing(administrator(lab.cluster)))
        world = World(lab.cluster, api)
        pair = [stack.enter_context(lab.reconciler(f"storm-{n}", seed + n)) for n in (1, 2)]
        began = time.monotonic()
        deadline = began + patience_s
        try:
            counts = rage(world, pair, Storm(count, seed, deadline))
        except BaseException:
            sys.stdout.write("\n".join(reconciler.tail() for reconciler in pair))
            raise
        head = [("pods", str(count)), ("seed", str(seed)), ("seconds of storm", f"{time.monotonic() - began:.0f}")]
        left = await_all(api, deadline, waiting=True)
        exchanges = [exchange for reconciler in pair for exchange in reconciler.proxy.exchanges()]
        head.append(("seconds in all", f"{time.monotonic() - began:.0f}"))
        head.append(("calls failed", failed_share(exchanges)))
        table = examine(world)
        show([*head, *((name, str(number)) for name, number in {**table, **counts}.items())])
        for name in left:
            sys.stdout.write(f"not ended: {api.get(f'{REQUESTS}/{name}')}\n")
        if left:
            sys.stdout.write("\n".join(reconciler.tail() for reconciler in pair))
    bad = [row for row in table if table[row] and not row.startswith(("Succeeded", "Failed"))]
    sys.stdout.write(f"not well: {', '.join(bad)}\n" if bad else "all is well\n")
    return not bad


def show(rows: Sequence[tuple[str, str]]) -> None:
    """Print the table."""
    for name, value in rows:
        sys.stdout.write(f"{name:<52} {value}\n")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.storm", description=__doc__)
    parser.add_argument("--pods", type=int, default=10_000, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is left to chance (%(default)s)")
    parser.add_argument("--patience", type=float, default=3600, help="seconds until it must be over (%(default)s)")
    options = parser.parse_args()
    # The proxies share this process with busy threads, and the Lease is renewed through them.
    sys.setswitchinterval(0.0005)
    sys.exit(0 if run(options.pods, options.seed, options.patience) else 1)


if __name__ == "__main__":
    main()
