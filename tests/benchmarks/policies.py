"""What the policies cost a write of a large pod: an ordinary user beside one whose writes no policy evaluates.

Both users patch an annotation of the same stored pod (dry runs), in turns, so that the ratio holds while the speed of
the machine changes.
"""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import yaml

from bowline.api import names
from bowline.localcluster.api import ApiClient
from bowline.localcluster.chart import ChartRelease
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.helm import find_helm
from bowline.localcluster.pair import CHART
from bowline.localcluster.spec import ClusterSpec
from tests.benchmarks.report import Figure, Report
from tools.generate.policy import MAX_CONTAINERS, MAX_RESOURCES

ORDINARY, EXEMPT = "ordinary", "exempt"
KINDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
VALUES = {"image": {"registry": "registry.example"}, "policy": {"trusted": {"users": [EXEMPT]}}}
SCHEDULER = "kai-scheduler"
PODS, DRY_RUN = "/api/v1/namespaces/default/pods", "?dryRun=All"


@dataclass(frozen=True, slots=True)
class PolicySizes:
    """``labels``: of each pod; ``entries``: of a list or map of a new pod; ``rounds``: writes of each user."""

    labels: tuple[int, ...] = (10, 250, 1000, 20_000)
    entries: int = 10_000
    rounds: int = 21


QUICK = PolicySizes((10, 1000), 1000, 3)


async def bench_policies(sizes: PolicySizes) -> Report:
    """Measure; takes a minute in full."""
    report = Report("Policies, one run on one machine")
    await asyncio.to_thread(_measure, sizes, report)
    return report


def _measure(sizes: PolicySizes, report: Report) -> None:
    objects = find_helm().template(ChartRelease("bowline", CHART, "bowline-system", set_values=VALUES))
    policies = [entry for entry in objects if entry["kind"] in KINDS]
    with Cluster.start(ClusterSpec(kwok=False, controllers=("clusterrole-aggregation-controller",))) as cluster:
        cluster.kubectl("create", "clusterrole", "bench", "--verb=get,patch,create", "--resource=pods")
        for user in (ORDINARY, EXEMPT):
            cluster.kubectl("create", "clusterrolebinding", user, "--clusterrole=bench", f"--user={user}")
        clients = {user: cluster.api_as(user) for user in (ORDINARY, EXEMPT)}
        for number in sizes.labels:
            labels = {f"example.com/{index}": "x" for index in range(number)}
            spec = {"containers": [{"name": "main", "image": "registry.example/app:1"}]}
            cluster.api.post(PODS, {"metadata": {"name": f"pod-{number}", "labels": labels}, "spec": spec})
        cluster.kubectl("apply", "--server-side", "-f", "-", input=yaml.safe_dump_all(policies))
        _wait_until_in_force(clients[ORDINARY], f"{PODS}/pod-{sizes.labels[0]}{DRY_RUN}")
        for number in sizes.labels:
            path = f"{PODS}/pod-{number}{DRY_RUN}"
            seconds: dict[str, list[float]] = {EXEMPT: [], ORDINARY: []}
            for index in range(sizes.rounds):
                for user, durations in seconds.items():
                    began = time.perf_counter()
                    clients[user].patch(path, {"metadata": {"annotations": {"round": str(index)}}})
                    durations.append((time.perf_counter() - began) * 1000)
            _add(report, f"write of a pod with {number} labels", seconds)
        for field, spec in _large_pods(sizes.entries).items():
            seconds = {EXEMPT: [], ORDINARY: []}
            for _ in range(sizes.rounds):
                for user, durations in seconds.items():
                    began = time.perf_counter()
                    # A pod beyond a bound is denied: that costs as little.
                    with suppress(LocalApiError):
                        clients[user].post(f"{PODS}{DRY_RUN}", _pod(spec, user))
                    durations.append((time.perf_counter() - began) * 1000)
            _add(report, f"creation of a pod with {sizes.entries} {field}", seconds)


def _add(report: Report, what: str, seconds: dict[str, list[float]]) -> None:
    exempt, ordinary = (f"{what}, {user} user" for user in (EXEMPT, ORDINARY))
    report.add(Figure(exempt, "ms", tuple(seconds[EXEMPT])))
    report.add(Figure(ordinary, "ms", tuple(seconds[ORDINARY]), against=exempt, wanted="<= 1.2"))


def _large_pods(entries: int) -> dict[str, dict[str, Any]]:
    """Return the spec of a pod for each field that a policy may read, by the field's name."""
    names_of_containers = [f"c{number}" for number in range(entries)]
    resources = {f"example.com/r{number}": "1" for number in range(entries)}
    fields: dict[str, dict[str, Any]] = {
        "limits": {"containers": [_container("main", resources={"limits": resources})]},
        "containers": {"containers": [_container(name) for name in names_of_containers]},
        f"resources in {MAX_CONTAINERS} containers": {
            "containers": [
                _container(name, resources={"limits": dict(list(resources.items())[:MAX_RESOURCES])})
                for name in names_of_containers[:MAX_CONTAINERS]
            ]
        },
        "variables": {"containers": [_container("main", env=[{"name": "A"}] * entries)]},
        "tolerations": {"containers": [_container("main")], "tolerations": [{"operator": "Exists"}] * entries},
    }
    return fields


def _pod(spec: dict[str, Any], user: str) -> dict[str, Any]:
    """Return a pod with a share. That of the exempt user has a scheduler whose pods no rule reads."""
    metadata = {"name": "large", "annotations": {names.GPU_FRACTION: "0.5"}}
    return {"metadata": metadata, "spec": {"schedulerName": SCHEDULER if user == ORDINARY else "other", **spec}}


def _container(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "registry.example/app:1", **fields}


def _wait_until_in_force(client: ApiClient, path: str) -> None:
    """Wait until the guard of shared devices denies its label. Raises TimeoutError."""
    for _ in range(300):
        try:
            client.patch(path, {"metadata": {"labels": {names.LABEL_GPU_GROUP: "g"}}})
        except LocalApiError as error:
            if "denied request" in str(error):
                return
        time.sleep(0.1)
    raise TimeoutError("the policies were not in force within 30 s")
