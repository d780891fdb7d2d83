"""The two sides of a comparison, each with its own control plane: kube-scheduler, or Bowline's reconciler.

Controllers are the real ones, with a client as fast as a large cluster's. A pod counts when a watch reports it on its
node, whichever component bound it.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bowline.api.meta import Object, ObjectKey
from bowline.kube.client import KubeClient
from bowline.kube.config import load_access
from bowline.kube.reflector import EventType, Listener, Reflector
from bowline.kube.resources import PODS, Selection
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.localcluster.spec import ClusterSpec
from tests.benchmarks.cpu import cpu_s
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.rig import NAMESPACE, READY_S, rig

PATIENCE_S = 300.0


@dataclass(slots=True)
class Bound:
    """The time at which each pod was observed on its node."""

    at: dict[str, float] = field(default_factory=dict)
    change: asyncio.Event = field(default_factory=asyncio.Event)

    def on_event(self, kind: EventType, key: ObjectKey, old: Object | None, new: Object | None) -> None:
        self.at.setdefault(key.name, time.perf_counter())
        self.change.set()

    async def all_of(self, count: int) -> None:
        """Wait until so many are observed."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.at) < count:
                self.change.clear()
                await self.change.wait()


@dataclass(frozen=True, slots=True)
class Budgets:
    """The budgets of the rate and of the first pod; ``against``: the rate to compare with."""

    rate: str = ""
    first: str = ""
    against: str = ""


@dataclass(slots=True)
class Side:
    """The component that binds. The client is the administrator's, for preparations."""

    name: str
    client: KubeClient
    bound: Bound
    pids: Mapping[str, int]
    began: float = 0.0
    cpu_at_start: Mapping[str, float] = field(default_factory=dict)

    def begin(self) -> None:
        """Start the clock, and record the CPU time that all processes have used so far."""
        self.began, self.cpu_at_start = time.perf_counter(), cpu_s(self.pids)

    def report(self, report: Report, object_kind: str, pods: int, budgets: Budgets | None = None) -> str:
        """Add the rate of bound pods, and the time of the first. Returns the rate's name."""
        budgets = budgets or Budgets()
        cpu_ms = {name: 1000 * (now - self.cpu_at_start[name]) / pods for name, now in cpu_s(self.pids).items()}
        began = self.began
        seconds = max(self.bound.at.values()) - began
        rate = f"{self.name}: {pods} pods with a {object_kind} each"
        report.add(Figure(rate, "pods/s", (pods / seconds,), budgets.against, budgets.rate))
        soonest = 1000 * (min(self.bound.at.values()) - began)
        report.add(Figure(f"{self.name}: the first of them", "ms", (soonest,), wanted=budgets.first))
        report.add(
            Figure(f"{self.name}: cores busy meanwhile", "cores", (sum(cpu_ms.values()) * pods / seconds / 1000,))
        )
        for name, each in cpu_ms.items():
            report.add(Figure(f"{self.name}: CPU of {name} for each", "ms", (each,)))
        return rate


@asynccontextmanager
async def kube_scheduler(nodes: int, controllers: Sequence[str]) -> AsyncIterator[Side]:
    """Start a control plane where kube-scheduler decides and binds, until the block ends."""
    with Cluster.start(_spec(controllers, scheduler=True)) as cluster:
        cluster.make_nodes(nodes)
        cluster.make_namespace(NAMESPACE)
        async with (
            KubeClient(await load_access(api_server(cluster.kubeconfig))) as client,
            _watch_bound_pods(client) as bound,
        ):
            yield Side("kube-scheduler", client, bound, _pids(cluster, "kube-scheduler"))


@asynccontextmanager
async def bowline(nodes: int, controllers: Sequence[str]) -> AsyncIterator[Side]:
    """Start a control plane with the chart's reconciler, which executes the benchmark's decisions."""
    with rig(nodes, _spec(controllers)) as stage, stage.reconciler() as process:
        process.wait_ready(READY_S)
        async with await stage.client() as client, _watch_bound_pods(client) as bound:
            yield Side("Bowline", client, bound, {**_pids(stage.cluster), "reconciler": process.pid})


def _pids(cluster: Cluster, *more: str) -> dict[str, int]:
    names = ("kube-apiserver", "etcd", "kube-controller-manager", *more)
    return {"load": os.getpid(), **{name: cluster.process(name).pid for name in names}}


def _spec(controllers: Sequence[str], *, scheduler: bool = False) -> ClusterSpec:
    return ClusterSpec(kwok=False, controllers=tuple(controllers), controller_qps=1000, scheduler=scheduler)


@asynccontextmanager
async def _watch_bound_pods(client: KubeClient) -> AsyncIterator[Bound]:
    bound = Bound()
    selection = Selection(PODS, NAMESPACE, field_selector="spec.nodeName!=")
    reflector = Reflector(client, selection, listener=Listener(bound.on_event))
    task = asyncio.create_task(reflector.run())
    try:
        await reflector.synced.wait()
        yield bound
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
