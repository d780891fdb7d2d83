"""Healthy requests beside many that wait for the same: the last pod of a gang, or an earlier request of their pod.

Each batch of healthy requests is measured alone first, then beside the crowd, after every request of the crowd has
reported that it waits. At the end a scheduler deletes the requests of the crowd's pod, as one that has decided again.
"""

import asyncio
import time
from dataclasses import dataclass

from bowline.api.meta import Object, status_of
from bowline.kube.client import KubeClient
from bowline.kube.resources import BINDREQUESTS, KAI_PODGROUPS, NAMESPACES, PODS
from bowline.testing.builders import bind_request, kai_pod_group, pod
from tests.benchmarks.cpu import cpu_s
from tests.benchmarks.drain import NODES, SPOKEN, warm_up
from tests.benchmarks.isolation import batch
from tests.benchmarks.load import delete_all, each
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.rig import READY_S, rig
from tests.pod_groups import in_group, install_pod_groups
from tests.waiting import until_awaited

CROWD = "bench-crowd"


@dataclass(frozen=True, slots=True)
class CrowdSizes:
    """How many pods the gang lacks one of, how many requests one pod has, and the healthy requests of a batch."""

    gang: int = 2500
    rivals: int = 300
    healthy: int = 80
    batches: int = 3


async def bench_crowds(sizes: CrowdSizes) -> Report:
    """Measure; takes five minutes in full."""
    report = Report("Healthy requests beside crowds that wait, one run on one machine")
    name, turns = f"{sizes.healthy} healthy requests", range(sizes.batches)
    with rig(NODES) as stage:
        install_pod_groups(stage.cluster)
        async with await stage.client() as client, await stage.bare() as bare:
            await warm_up(client, bare)
            await client.create(NAMESPACES, "", {"metadata": {"name": CROWD}})
            with stage.reconciler({**SPOKEN, "config.featureGates": {"GangBinding": True}}) as process:
                await asyncio.to_thread(process.wait_ready, READY_S)
                pids = {"reconciler": process.pid}
                await batch(client, "warm", sizes.healthy)
                alone = tuple([await batch(client, f"alone-{turn}", sizes.healthy) for turn in turns])
                report.add(Figure(f"{name}: all bound after", "s", alone))
                for crowd, size, create in (("a gang", sizes.gang, _gang), ("one pod", sizes.rivals, _rivals)):
                    await create(client, size)
                    await _all_report(client)
                    before, began = cpu_s(pids)["reconciler"], time.monotonic()
                    label = crowd.replace(" ", "-")
                    beside = tuple([await batch(client, f"{label}-{turn}", sizes.healthy) for turn in turns])
                    await asyncio.sleep(max(0.0, 15 - (time.monotonic() - began)))
                    cores = (cpu_s(pids)["reconciler"] - before) / (time.monotonic() - began)
                    beside_name = f"{name} beside {size} requests of {crowd}"
                    report.add(Figure(beside_name, "s", beside, f"{name}: all bound after", "<= 2"))
                    report.add(Figure(f"{beside_name}: the reconciler uses", "cores", (cores,)))
                    deletion = await _delete(client)
                    report.add(Figure(f"{size} requests of {crowd} deleted after", "s", (deletion,)))
    return report


async def _gang(client: KubeClient, size: int) -> None:
    """Create prepared pods of a gang that lacks one."""
    await client.create(KAI_PODGROUPS, CROWD, kai_pod_group("gang", min_member=size + 1, queue="team"))

    async def create(number: int) -> None:
        body = pod(f"gang-{number}", CROWD)
        body["metadata"]["annotations"] = in_group("gang")
        await _decide(client, await client.create(PODS, CROWD, body), f"gang-{number}", number)

    await each(size, create)


async def _rivals(client: KubeClient, size: int) -> None:
    """Create requests of one pod that has a scheduling gate."""
    stored_pod = await client.create(PODS, CROWD, pod("rivals", CROWD, schedulingGates=[{"name": "bench/hold"}]))
    await each(size, lambda number: _decide(client, stored_pod, f"rival-{number}", number))


async def _decide(client: KubeClient, stored_pod: Object, name: str, number: int) -> None:
    metadata = stored_pod["metadata"]
    body = bind_request(metadata["name"], f"gpu-node-{number % NODES}", CROWD, metadata["uid"])
    body["metadata"]["name"] = name
    await client.create(BINDREQUESTS, CROWD, body)


async def _all_report(client: KubeClient) -> None:
    """Wait until each request of the crowd reports its wait: twenty a second do. Raises TimeoutError."""
    async with asyncio.timeout(600):
        while not all(  # noqa: ASYNC110 - another process's reports
            status_of(request).get("phase") for request in await client.list_all(BINDREQUESTS, CROWD)
        ):
            await asyncio.sleep(1)


async def _delete(client: KubeClient) -> float:
    """Delete the crowd's requests, then its pods; returns the seconds until the last request is gone."""
    began = time.monotonic()
    await delete_all(client, BINDREQUESTS, CROWD)
    await until_awaited(lambda: client.list_all(BINDREQUESTS.as_metadata(), CROWD), lambda requests: not requests)
    took = time.monotonic() - began
    await delete_all(client, PODS, CROWD)
    return took
