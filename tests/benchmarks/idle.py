"""What the processes take while nothing happens: webhook, reconciler and the example scheduler beside bound pods."""

import asyncio
from dataclasses import dataclass

from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import load_access
from bowline.localcluster.kubeconfig import api_server
from bowline.localcluster.scheduler import start_scheduler
from tests.benchmarks.cpu import cpu_s
from tests.benchmarks.load import make_bound
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.rig import NAMESPACE
from tests.pairs import running_pair

NODES = 10


@dataclass(frozen=True, slots=True)
class IdleProcessSizes:
    """How many bound pods, how long the processes come to rest, and how long they are measured."""

    pods: int = 500
    rest_s: float = 30.0
    seconds: float = 120.0


async def bench_idle(sizes: IdleProcessSizes) -> Report:
    """Measure once; takes four minutes in full."""
    report = Report(f"CPU time while nothing happens, beside {sizes.pods} bound pods")
    with running_pair(NODES, {}) as (cluster, processes):
        cluster.make_namespace(NAMESPACE)
        scheduler = start_scheduler(cluster)
        assert processes.webhook is not None
        pids = {"webhook": processes.webhook.pid, "reconciler": processes.reconcilers[0].pid}
        pids["example scheduler"] = scheduler.pid
        access = await load_access(api_server(cluster.kubeconfig))
        async with KubeClient(access, ClientOptions(name="bench")) as client:
            await make_bound(client, 0, sizes.pods, NODES)
        await asyncio.sleep(sizes.rest_s)
        before = cpu_s(pids)
        await asyncio.sleep(sizes.seconds)
        after = cpu_s(pids)
    for name in pids:
        share = 100 * (after[name] - before[name]) / sizes.seconds
        report.add(Figure(f"{name}, idle", "% of a core", (share,), wanted="<= 0.5"))
    return report
