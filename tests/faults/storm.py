"""The storm: thousands of pods while calls fail, leaders die, nodes vanish, pods and requests are remade.

    python -m tests.faults.storm --pods 10000

In the end every request is Succeeded with its pod on its node, or Failed with a reason that is true; nothing was done
twice, nothing is left over, and nobody ever said Bound of a pod that was not. Printed as a table; exits with 1 if
anything in it is not as it must be.
"""

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from localcluster.cluster import Cluster
from localcluster.errors import ApiError
from shared.api import names
from shared.testing.builders import bind_request, pod
from tests.faults.endstate import deeds, leftovers
from tests.faults.lab import CONFIG, open_lab
from tests.faults.plugins.fault_effects import EFFECT, OWNER, REFUSE
from tests.faults.scenarios import FLAKY
from tests.faults.truth import TruthObserver
from tests.faults.weather import Weather, failed_share, leader_killer, pause, storm_rules

NAMESPACE = "storm"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
REQUESTS = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.PLURAL}"
CONFIGMAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
NODES, VANISHING = 20, 10
# Of the API server, and so the time for which a new leader undoes nothing. Leaders must live longer than that, or no
# failure would ever end.
REQUEST_TIMEOUT_S = 3
LEADER_LIVES_S = (6, 10)
# Pods and requests are remade for so long after the last of them was submitted.
_RESTLESS_S = 10


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asked for, remembered when it was made: the request may be gone at the end."""

    pod_uid: str
    node: str
    refused: bool


@dataclass(slots=True)
class World:
    """The scheduler and the users: makes pods and requests, takes some away and makes them again."""

    cluster: Cluster
    asked: dict[str, Asked] = field(default_factory=dict)
    pods: list[str] = field(default_factory=list)
    gone_nodes: set[str] = field(default_factory=set)

    def submit(self, name: str, rng: random.Random) -> None:
        """Create a pod and its request."""
        flaky = rng.random() < 0.1
        wanted = pod(name, NAMESPACE)
        wanted["metadata"]["annotations"] = {FLAKY: str(rng.randint(1, 2))} if flaky else {}
        uid = self.cluster.api.post(PODS, wanted)["metadata"]["uid"]
        self.decide(name, uid, rng)
        self.pods.append(name)

    def decide(self, name: str, uid: str, rng: random.Random) -> None:
        """Create the request, as a scheduler does."""
        prefix, count = ("vanishing", VANISHING) if rng.random() < 0.1 else ("gpu-node", NODES)
        node = f"{prefix}-{rng.randrange(count)}"
        annotations = {EFFECT: "yes"} if rng.random() < 0.3 else {}
        refused = rng.random() < 0.05
        if refused:
            annotations[REFUSE] = "yes"
        wanted = bind_request(name, node, NAMESPACE, uid)
        wanted["metadata"]["annotations"] = annotations
        made = self.cluster.api.post(REQUESTS, wanted)
        self.asked[made["metadata"]["uid"]] = Asked(uid, node, refused)

    def remake_pod(self, rng: random.Random) -> bool:
        """A pod is deleted and made again, with a new decision, as a controller and a scheduler do."""
        if not self.pods:
            return False
        name = rng.choice(self.pods[-50:])
        self.cluster.api.request("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        self.await_gone(f"{PODS}/{name}")
        uid = self.cluster.api.post(PODS, pod(name, NAMESPACE))["metadata"]["uid"]
        self.withdraw(name)
        self.decide(name, uid, rng)
        return True

    def remake_request(self, rng: random.Random) -> bool:
        """A scheduler changes its mind: the request is deleted and made again for another node."""
        if not self.pods:
            return False
        name = rng.choice(self.pods[-50:])
        uid = self.cluster.api.get(f"{PODS}/{name}")["metadata"]["uid"]
        self.withdraw(name)
        self.decide(name, uid, rng)
        return True

    def vanish_node(self, _: random.Random) -> bool:
        """A node is gone for good."""
        if len(self.gone_nodes) == VANISHING:
            return False
        node = f"vanishing-{len(self.gone_nodes)}"
        self.gone_nodes.add(node)
        self.cluster.api.delete(f"/api/v1/nodes/{node}")
        return True

    def withdraw(self, name: str) -> None:
        """Delete the request and wait until it is gone."""
        try:
            self.cluster.api.delete(f"{REQUESTS}/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
        self.await_gone(f"{REQUESTS}/{name}")

    def await_gone(self, path: str) -> None:
        """Wait until the API server denies the object."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            try:
                self.cluster.api.get(path)
            except ApiError as error:
                if error.status == 404:
                    return
                raise
            time.sleep(0.05)
        raise TimeoutError(f"{path} does not go away")


def unfinished(cluster: Cluster) -> list[str]:
    """Return the requests that have not ended, or are still held by something of ours."""
    return [
        item["metadata"]["name"]
        for item in cluster.api.get(REQUESTS)["items"]
        if (item.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        or item["metadata"].get("finalizers")
    ]


def judge(
    request: Mapping[str, Any], asked: Asked, gone_nodes: set[str], pods: Mapping[str, Mapping[str, Any]]
) -> str:
    """Return what a finished request has come to: Succeeded, its reason, or what is untrue about it."""
    status = request.get("status") or {}
    if status.get("phase") not in ("Succeeded", "Failed"):
        return "not ended"
    found = pods.get(request["spec"]["podName"])
    is_there = found is not None and found["metadata"]["uid"] == asked.pod_uid
    node = found["spec"].get("nodeName", "") if found is not None and is_there else ""
    if status["phase"] == "Succeeded":
        return "Succeeded" if node == asked.node or not is_there else "UNTRUE Succeeded"
    reason = str(status["reason"]).partition(":")[0]
    truth = {
        "NodeGone": asked.node in gone_nodes and node != asked.node,
        "PodGone": not is_there,
        "Rejected": asked.refused and node != asked.node,
        "BoundElsewhere": node not in ("", asked.node),
        "BackoffLimitExceeded": node != asked.node and (status.get("failedAttempts") or 0) > 0,
    }
    return f"Failed, {reason}" if truth.get(reason, False) else f"UNTRUE {reason}"


def examine(world: World, truth: TruthObserver) -> Counter[str]:
    """Look at everything there is in the end."""
    api = world.cluster.api
    pods = {item["metadata"]["name"]: item for item in api.get(PODS)["items"]}
    table: Counter[str] = Counter()
    for request in api.get(REQUESTS)["items"]:
        asked = world.asked[request["metadata"]["uid"]]
        table[judge(request, asked, world.gone_nodes, pods)] += 1
        table["leftover finalizers"] += bool(request["metadata"].get("finalizers"))
    bound = truth.bound()
    for effect in api.get(f"{CONFIGMAPS}?labelSelector={OWNER}")["items"]:
        asked = world.asked[effect["metadata"]["labels"][OWNER]]
        table["leftover effects"] += bound.get(asked.pod_uid) != asked.node
    done = deeds(world.cluster)[NAMESPACE]
    table["double Bindings"] = done.bindings - len(bound)
    return table


def run(count: int, seed: int, patience_s: float) -> bool:
    """Raise a storm, wait it out, print what has come of it; returns whether all is well."""
    config = {**CONFIG, "config.binding.inFlightTimeout": f"{REQUEST_TIMEOUT_S}s"}
    with open_lab(config, NODES, (f"--request-timeout={REQUEST_TIMEOUT_S}s",)) as lab, ExitStack() as stack:
        lab.cluster.make_nodes(VANISHING, prefix="vanishing")
        lab.cluster.make_namespace(NAMESPACE)
        world = World(lab.cluster)
        truth = stack.enter_context(TruthObserver(lab.cluster, leftovers))
        pair = [stack.enter_context(lab.reconciler(f"storm-{n}", seed + n)) for n in (1, 2)]
        for reconciler in pair:
            reconciler.proxy.add(*storm_rules())
        began = time.monotonic()
        weather, people = Weather(seed), Weather(seed + 1)
        weather.every(LEADER_LIVES_S, "leaders killed", leader_killer(pair))
        people.every((1, 4), "nodes vanished", world.vanish_node)
        people.every((0.2, 0.6), "pods remade", world.remake_pod)
        people.every((0.2, 0.6), "requests remade", world.remake_request)
        with ThreadPoolExecutor(4) as scheduler:
            list(scheduler.map(lambda n: world.submit(f"pod-{n}", random.Random(seed + n)), range(count)))  # noqa: S311
        pause(_RESTLESS_S)
        people.calm()
        # Calls go on failing and leaders dying until all is done.
        while (left := unfinished(lab.cluster)) and time.monotonic() < began + patience_s:
            truth.check()
            pause(1)
        weather.calm()
        seconds = time.monotonic() - began
        table = examine(world, truth)
        exchanges = [exchange for reconciler in pair for exchange in reconciler.proxy.exchanges()]
        rows = {
            **table,
            **weather.counts,
            **people.counts,
            **{f"claims checked: {k}": n for k, n in truth.checked.items()},
        }
        show([("pods", str(count)), ("seconds", f"{seconds:.0f}"), ("calls failed", failed_share(exchanges))], rows)
        for name in left[:10]:
            sys.stdout.write(f"not ended: {lab.cluster.api.get(f'{REQUESTS}/{name}')}\n")
        if left:
            sys.stdout.write("\n".join(reconciler.tail() for reconciler in pair))
        truth.check()
    bad = [row for row in table if table[row] and not row.startswith(("Succeeded", "Failed"))]
    sys.stdout.write(f"not well: {', '.join(bad)}\n" if bad else "all is well\n")
    return not bad


def show(head: list[tuple[str, str]], rows: Mapping[str, int]) -> None:
    """Print the table."""
    for name, value in [*head, *((name, str(count)) for name, count in rows.items())]:
        sys.stdout.write(f"{name:<36} {value}\n")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.storm", description=__doc__)
    parser.add_argument("--pods", type=int, default=10_000, help="how many (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of everything that is left to chance (%(default)s)")
    parser.add_argument("--patience", type=float, default=3600, help="seconds until it must be over (%(default)s)")
    given = parser.parse_args()
    sys.exit(0 if run(given.pods, given.seed, given.patience) else 1)


if __name__ == "__main__":
    main()
