"""Reads of volumes while other processes write them: several processes, stale caches, lost replies.

The plugin runs in the test's process against the real API server and the real volume controller; another process is
another instance of it.
"""

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest

from bowline.api.bindrequest import decode_bind_request
from bowline.framework.binding.context import BindContext
from bowline.framework.config import Settings
from bowline.framework.plugin_status import Code, Status
from bowline.framework.reason import Reason, Suggestion
from bowline.framework.waiting import BindTimeoutConfig
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import load_access
from bowline.kube.resources import PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, Resource
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.plugins.volume_binding import VolumeBinding
from bowline.runtime.clock import SystemClock
from bowline.testing.builders import bind_request, pod, stored
from bowline.testing.handles import handle_for
from tests.live import LiveCluster
from tests.plugins.storage import Storage, mounts
from tests.waiting import LIMIT_S, until

SEEN_NODE = {"metadata": {"name": "gpu-node-0", "resourceVersion": "1"}}


@pytest.fixture
def storage(cluster: Cluster) -> Iterator[Storage]:
    """The storage of this test, in its own namespace."""
    storage = Storage(LiveCluster(cluster, f"test-{uuid.uuid4().hex[:8]}"))
    cluster.make_namespace(storage.live.namespace)
    storage.make_class()
    yield storage
    storage.clean()
    cluster.kubectl("delete", "namespace", storage.live.namespace, "--wait=false")


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[KubeClient]:
    """The administrator's client."""
    async with KubeClient(
        await load_access(api_server(cluster.kubeconfig)), ClientOptions(name="bowline-test")
    ) as kube_client:
        yield kube_client


async def process(client: KubeClient) -> VolumeBinding:
    """Return the plugin as a process has it."""
    plugin = VolumeBinding(BindTimeoutConfig(), Settings())
    await plugin.setup(handle_for(plugin.name, client))
    return plugin


def context(storage: Storage, name: str, *claims: str) -> BindContext:
    """Return a context for a pod that mounts the claims; neither pod nor request need be stored."""
    namespace = storage.live.namespace
    request = decode_bind_request(stored(bind_request(name, "gpu-node-0", namespace, f"uid-{name}"), f"br-{name}"))
    cached_pod = stored(pod(name, namespace, volumes=mounts(*claims)), f"uid-{name}")
    log = logging.LoggerAdapter(logging.getLogger(__name__))
    # An attempt's node is the reconciler's trimmed view: identity and GPU labels.
    return BindContext(request, cached_pod, SEEN_NODE, 1, "a", SystemClock().now(), None, log)  # type: ignore[arg-type]


async def bound_volume(storage: Storage, claim: str) -> str:
    """Wait until the controller reports Bound; returns the volume."""
    await until(lambda: storage.claim(claim)["status"].get("phase") == "Bound")
    return storage.volume_of(claim)


async def result_of(plugin: VolumeBinding, ctx: BindContext) -> Status:
    """Repeat pre_bind until it no longer waits for the controller."""
    async with asyncio.timeout(LIMIT_S):
        while (status := await plugin.pre_bind(ctx)).code is Code.WAIT:  # noqa: ASYNC110 - no wait index here
            await asyncio.sleep(0.02)
    return status


async def test_processes_that_overlap_never_give_two_claims_one_volume(storage: Storage, client: KubeClient) -> None:
    claims = [f"c{number}" for number in range(6)]
    for name in claims:
        storage.make_claim(name)
    for name in claims[:-1]:
        storage.make_volume(name)
    processes = [await process(client) for _ in range(3)]
    binds = [result_of(processes[number % 3], context(storage, name, name)) for number, name in enumerate(claims)]
    answers = await asyncio.gather(*binds)
    assert sorted(answer.code for answer in answers) == [Code.FATAL, *[Code.OK] * 5]
    (failure,) = (answer for answer in answers if answer.code is Code.FATAL)
    assert (failure.reason, failure.suggestion) == (Reason.VOLUME_CONFLICT, Suggestion.RESCHEDULE_ELSEWHERE)
    took = [name for name, answer in zip(claims, answers, strict=True) if answer.code is Code.OK]
    assert {await bound_volume(storage, name) for name in took} == set(claims[:-1])


class Counting(KubeClient):
    """Records the volumes that it was to write, and the claims that it has read."""

    writes: list[str]
    read: list[str]

    async def get(self, resource: Resource, namespace: str, name: str, **kwargs: Any) -> dict[str, Any]:
        if resource == PERSISTENTVOLUMECLAIMS:
            self.read.append(name)
        return await super().get(resource, namespace, name, **kwargs)

    async def patch(self, resource: Resource, namespace: str, name: str, body: Any, **kwargs: Any) -> dict[str, Any]:
        if resource == PERSISTENTVOLUMES:
            self.writes.append(name)
        return await super().patch(resource, namespace, name, body, **kwargs)


@asynccontextmanager
async def counting(cluster: Cluster) -> AsyncIterator[Counting]:
    """The administrator's client, with a record."""
    async with Counting(await load_access(api_server(cluster.kubeconfig))) as kube_client:
        client = cast(Counting, kube_client)
        client.writes, client.read = [], []
        yield client


async def test_pods_of_one_process_never_write_the_same_volume(storage: Storage, cluster: Cluster) -> None:
    claims = [f"c{number}" for number in range(5)]
    for name in claims:
        storage.make_claim(name)
        storage.make_volume(name)
    async with counting(cluster) as client:
        plugin = await process(client)
        answers = await asyncio.gather(*(result_of(plugin, context(storage, name, name)) for name in claims))
    assert {answer.code for answer in answers} == {Code.OK}
    assert sorted(client.writes) == [storage.name(name) for name in claims]


async def test_pods_that_share_a_claim_agree_on_its_volume(storage: Storage, client: KubeClient) -> None:
    storage.make_claim()
    for short in ("a", "b", "c"):
        storage.make_volume(short)
    first_process, second_process = await process(client), await process(client)
    binds = [
        result_of(plugin, context(storage, f"p{n}", "data"))
        for n in range(4)
        for plugin in (first_process, second_process)
    ]
    assert {answer.code for answer in await asyncio.gather(*binds)} == {Code.OK}
    volume = await bound_volume(storage, "data")
    # All of them chose the same one: none of the others was written and had to be released.
    for short in {"a", "b", "c"} - {volume}:
        assert "claimRef" not in storage.volume(short)["spec"]


async def test_a_missing_right_is_named(storage: Storage, cluster: Cluster) -> None:
    namespace = storage.live.namespace
    storage.make_claim()
    storage.make_volume("v")
    cluster.kubectl("create", "serviceaccount", "poor", "-n", namespace)
    resources = "nodes,persistentvolumes,persistentvolumeclaims,storageclasses.storage.k8s.io"
    cluster.kubectl("create", "clusterrole", namespace, "--verb=get,list", f"--resource={resources}")
    cluster.kubectl(
        "create", "clusterrolebinding", namespace, f"--clusterrole={namespace}", f"--serviceaccount={namespace}:poor"
    )
    try:
        storage.live.until_allowed(f"system:serviceaccount:{namespace}:poor", "get", "persistentvolumeclaims")
        access = await load_access(api_server(cluster.service_account_kubeconfig(namespace, "poor")))
        async with KubeClient(access) as client:
            status = await (await process(client)).pre_bind(context(storage, "pod", "data"))
        assert status.reason is Reason.RBAC_MISSING
    finally:
        for kind in ("clusterrolebinding", "clusterrole"):
            cluster.kubectl("delete", kind, namespace)
