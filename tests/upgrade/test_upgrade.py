"""Upgrade and rollback between the previous version and this one, under load, with the processes of both.

Chart and image change while the old processes run on for 10 s beside the new ones, as pods do while their replacement
is scheduled and pulled. Helm, API server and processes are real; kwok acts as kubelets and as the agents of shares.
Not run: images, and therefore one that cannot be pulled (tests/node).
"""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from bowline.api import names
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import load_access
from bowline.kube.errors import KubeError
from bowline.kube.resources import BINDREQUESTS, PODS
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.helm import find_helm
from bowline.localcluster.kubeconfig import api_server
from bowline.localcluster.pair import Pair
from bowline.localcluster.ports import free_port
from bowline.localcluster.spec import ClusterSpec
from bowline.localcluster.workload import LocalProcess, WorkloadOptions, start_workload
from bowline.testing.builders import bind_request, pod
from tests.upgrade.balancer import Backend, Balancer
from tests.upgrade.load import Load
from tests.upgrade.previous import Version, present_version, previous_version
from tests.waiting import until_awaited

# The API server's log line of a call without a response, whether the object is allowed or denied.
LOST_CALL = re.compile(r"[Ff]ailed calling webhook, failing (?:open|closed) (\S+): (.*)")

NAMESPACE, WORK = "bowline-system", "default"
OVERLAP_S, CALM_S = 10, 4
REVIEWS_PER_S, BINDS_PER_S, SHARES_PER_S = 15, 3, 1
VALUES = {"config.binding.inFlightTimeout": "2s"}


@dataclass(slots=True)
class Stage:
    """A cluster with one release, and processes of two versions."""

    cluster: Cluster
    client: KubeClient
    balancer: Balancer
    running: dict[str, list[LocalProcess]] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    created: list[str] = field(default_factory=list)
    _started: int = 0

    async def install(self, version: Version) -> None:
        """Install the version's chart, or upgrade to it."""
        address = {"webhook.url": f"https://127.0.0.1:{self.balancer.port}"}
        options = replace(version.options, set_values={**VALUES, **address, **version.options.set_values})
        await asyncio.to_thread(Pair.install, self.cluster, find_helm(), options)

    async def start(self, version: Version) -> None:
        """Start a webhook and a reconciler of the version from the installed Deployments.

        The webhook drains as long as by default: only so have API servers left the connections that it closes.
        """
        self._started += 1
        for component, extra in (("webhook", ("--drain=30s",)), ("reconciler", ())):
            options = WorkloadOptions(
                name=f"{component}-{self._started}",
                listen=f"127.0.0.1:{free_port()}" if component == "webhook" else "",
                extra_args=extra,
                env=version.env,
            )
            process = await asyncio.to_thread(
                start_workload, self.cluster, NAMESPACE, f"bowline-{component}", options
            )
            self.running.setdefault(version.tag, []).append(process)
            if component == "webhook":
                self.balancer.backends.append(Backend(process.listen, process.metrics))
            await asyncio.to_thread(process.wait_ready)

    async def stop(self, version: Version) -> None:
        """Stop the version's processes, as a kubelet would."""
        for process in self.running.pop(version.tag):
            assert await asyncio.to_thread(process.stop, 120.0), "it did not exit by itself"
            self.balancer.forget(process.listen)

    # --- load ---

    async def bind(self, name: str, groups: tuple[str, ...] = ()) -> None:
        """Create a pod and its request as a scheduler does; record what is denied."""
        body, fields = pod(name), {}
        if groups:
            body["metadata"]["annotations"] = {names.GPU_FRACTION: "0.5"}
            fields = {
                "receivedResourceType": "Fraction",
                "receivedGPU": {"count": 1, "portion": "0.50"},
                "selectedGPUGroups": list(groups),
            }
        try:
            stored_pod = await self.client.create(PODS, WORK, body)
            request = bind_request(name, "gpu-node-0", WORK, stored_pod["metadata"]["uid"], **fields)
            await self.client.create(BINDREQUESTS, WORK, request)
        except KubeError as error:
            self.errors[str(error)[:300]] += 1
        else:
            self.created.append(name)

    async def phases(self) -> dict[str, str]:
        """Return the phase and reason of each unfinished or failed request."""
        requests = await self.client.list_all(BINDREQUESTS, WORK)
        return {
            request["metadata"]["name"]: f"{status.get('phase')}: {status.get('reason')}"
            for request in requests
            if (status := request.get("status") or {}).get("phase") != "Succeeded"
        }


async def create_at_a_rate(stage: Stage, per_s: int, prefix: str, *, shares: bool) -> None:
    """Create pods and requests until cancelled."""
    async with asyncio.TaskGroup() as tasks:
        for number in range(10_000):
            name = f"{prefix}-{number}"
            tasks.create_task(stage.bind(name, (f"group-{number}",) if shares else ()))
            await asyncio.sleep(1 / per_s)


@contextlib.asynccontextmanager
async def load(stage: Stage) -> AsyncIterator[Load]:
    """Reviews, binds and shares until the block ends."""
    reviews = Load(stage.client, REVIEWS_PER_S)
    creating = [
        asyncio.create_task(create_at_a_rate(stage, BINDS_PER_S, "plain", shares=False)),
        asyncio.create_task(create_at_a_rate(stage, SHARES_PER_S, "share", shares=True)),
    ]
    try:
        async with reviews.running():
            yield reviews
    finally:
        for task in creating:
            task.cancel()
        await asyncio.gather(*creating, return_exceptions=True)


@pytest.fixture
def previous(tmp_path: Path) -> Version:
    return previous_version(tmp_path / "previous")


@pytest.fixture
def present(tmp_path: Path) -> Version:
    return present_version(tmp_path / "present")


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    with Cluster.start(ClusterSpec()) as cluster:
        cluster.make_nodes(1)
        cluster.make_runtime_class()
        balancer = Balancer(free_port())
        access = load_access(api_server(cluster.kubeconfig))
        async with KubeClient(access, ClientOptions(name="upgrade")) as client, balancer.running():
            stage = Stage(cluster, client, balancer)
            yield stage
            for process in [process for processes in stage.running.values() for process in processes]:
                await asyncio.to_thread(process.kill)


def _failures(stage: Stage, reviews: Load) -> Counter[str]:
    """Return what was denied or got no reply so far."""
    log = stage.cluster.process("kube-apiserver").log.read_text()
    return stage.errors + reviews.failures + Counter(f"{webhook}: {why}" for webhook, why in LOST_CALL.findall(log))


async def test_an_upgrade_and_a_rollback_end_no_share_and_lose_no_call(
    stage: Stage, previous: Version, present: Version
) -> None:
    await stage.install(previous)
    await stage.start(previous)
    async with load(stage) as reviews:
        await asyncio.sleep(CALM_S)
        before: Counter[str] = Counter()
        alone: Counter[str] = Counter()  # what fails while only this version runs
        for old, new in ((previous, present), (present, previous)):
            await stage.install(new)
            if old is present:
                alone = _failures(stage, reviews) - before
            await stage.start(new)
            await asyncio.sleep(OVERLAP_S)
            await stage.stop(old)
            if old is previous:
                before = _failures(stage, reviews)
            await asyncio.sleep(CALM_S)
    assert alone == Counter()
    assert _failures(stage, reviews) == Counter()
    unfinished = await until_awaited(stage.phases, lambda phases: not phases or "Failed" in str(phases))
    assert unfinished == {}
    assert reviews.begun_count >= 1000
    assert sum(name.startswith("plain") for name in stage.created) >= 200
    assert sum(name.startswith("share") for name in stage.created) >= 60
