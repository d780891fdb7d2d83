"""Replicas of the webhook behind a balancer, called by a real API server; and disturbances of them."""

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import load_access
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.helm import find_helm
from bowline.localcluster.kubeconfig import api_server
from bowline.localcluster.pair import Pair, PairOptions
from bowline.localcluster.ports import free_port
from bowline.localcluster.workload import LocalProcess, WorkloadOptions, start_workload
from tests.availability import webhook
from tests.availability.balancer import Backend, Balancer
from tests.waiting import until

# Lifetimes as short as possible while the order of events remains that of years.
LIFETIMES, DRAIN = "20,60,2", "--drain=2s"
NAMESPACE, WEBHOOK = "bowline-system", "bowline-webhook"
SECRET = "bowline-ca"
# The API server's log line of a call without a response, whether the object is allowed or denied.
LOST_CALL = re.compile(r"[Ff]ailed calling webhook, failing (?:open|closed) (\S+): (.*)")
# The machine was too slow, or a process hung: the one reason that a loaded machine cannot exclude.
TIMED_OUT = "context deadline exceeded"


@dataclass(slots=True)
class Rig:
    """A cluster with the chart, and replicas that are started and stopped."""

    cluster: Cluster
    client: KubeClient
    balancer: Balancer
    lifetimes: str = LIFETIMES
    drain: str = DRAIN
    replicas: list[LocalProcess] = field(default_factory=list)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _stopped_values: dict[str, float] = field(default_factory=dict)

    @property
    def grace_s(self) -> float:
        """For how long a new CA is in the bundle before it signs."""
        return float(self.lifetimes.rpartition(",")[2])

    async def add(self) -> LocalProcess:
        """Start a replica; it is called once it is ready."""
        options = WorkloadOptions(
            name=f"webhook-{next(self._numbers)}",
            listen=f"127.0.0.1:{free_port()}",
            extra_args=(self.drain,),
            env={webhook.LIFETIMES: self.lifetimes},
            module=webhook.__name__,
        )
        replica = await asyncio.to_thread(start_workload, self.cluster, NAMESPACE, WEBHOOK, options)
        self.replicas.append(replica)
        self.balancer.backends.append(Backend(replica.listen, replica.metrics))
        return replica

    async def ready(self) -> None:
        """Wait until the balancer has observed every replica ready, apart from those that are being stopped."""
        await until(self._is_ready)

    def _is_ready(self) -> bool:
        addresses = {replica.listen for replica in self.replicas}
        return all(backend.ready for backend in self.balancer.backends if backend.listen in addresses)

    async def scale(self, count: int) -> None:
        """Start replicas until so many are ready."""
        while len(self.replicas) > count:
            await self.stop(self.replicas[-1])
        while len(self.replicas) < count:
            await self.add()
        await self.ready()

    async def stop(self, replica: LocalProcess) -> None:
        """Stop a replica as a kubelet would; it serves until it has drained."""
        self._remember(replica)
        self.replicas.remove(replica)
        assert await asyncio.to_thread(replica.stop, 120.0), "it did not exit by itself"
        self.balancer.forget(replica.listen)

    async def kill(self, replica: LocalProcess) -> None:
        """Kill a replica, as in a crash."""
        self._remember(replica)
        self.replicas.remove(replica)
        await asyncio.to_thread(replica.kill)
        self.balancer.forget(replica.listen)

    def total(self, series: str) -> float:
        """Return the sum of a counter over all replicas so far, with the last known values of stopped ones."""
        return sum(_count(replica, series) for replica in self.replicas) + self._stopped_values.get(series, 0.0)

    def lost_calls(self) -> list[str]:
        """Return the reason of each of the API server's calls without a response so far."""
        return [match[2] for match in LOST_CALL.finditer(self.cluster.process("kube-apiserver").log.read_text())]

    def mangle(self, data: Mapping[str, Any] | None) -> None:
        """Overwrite data of the CA's Secret; None removes all of it."""
        patch = f"-p={json.dumps({'data': data if data is None else dict(data)})}"
        self.cluster.kubectl("patch", "secret", SECRET, f"--namespace={NAMESPACE}", "--type=merge", patch)

    def _remember(self, replica: LocalProcess) -> None:
        for series in COUNTED:
            self._stopped_values[series] = self._stopped_values.get(series, 0.0) + _count(replica, series)


RENEWALS = 'bowline_certificate_steps_total{step="renew"}'
SWITCHES = 'bowline_certificate_steps_total{step="switch"}'
COUNTED = (RENEWALS, SWITCHES)


@contextlib.asynccontextmanager
async def rig_on(cluster: Cluster) -> AsyncIterator[Rig]:
    """Install the chart on a cluster; no replica is started yet."""
    balancer = Balancer(free_port())
    values = {"webhook.url": f"https://127.0.0.1:{balancer.port}"}
    await asyncio.to_thread(Pair.install, cluster, find_helm(), PairOptions(set_values=values))
    access = await load_access(api_server(cluster.kubeconfig))
    async with KubeClient(access, ClientOptions(name="availability")) as client, balancer.running():
        rig = Rig(cluster, client, balancer)
        try:
            yield rig
        finally:
            for replica in rig.replicas:
                await asyncio.to_thread(replica.kill)


def _count(replica: LocalProcess, series: str) -> float:
    try:
        text = replica.get("/metrics")[1]
    except OSError:
        return 0.0
    match = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
    return float(match[1]) if match else 0.0
