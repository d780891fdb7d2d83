"""Changes while a volume is being bound, without a volume controller, which could be faster than the test."""

import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from bowline.api.bindrequest import decode_bind_request
from bowline.framework.binding.context import BindContext
from bowline.framework.config import Settings
from bowline.framework.plugin_status import Code, Status
from bowline.framework.reason import Reason, Suggestion
from bowline.framework.waiting import BindTimeoutConfig
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import load_access
from bowline.kube.resources import NODES, Resource
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.plugins.volume_binding import VolumeBinding
from bowline.runtime.clock import SystemClock
from bowline.testing.builders import bind_request, pod, stored
from bowline.testing.clock import SteppedClock
from bowline.testing.handles import handle_for
from tests.live import LiveCluster
from tests.plugins.storage import Storage, mounts

NODE = "gpu-node-0"
ELSEWHERE = (Code.FATAL, Reason.VOLUME_CONFLICT, Suggestion.RESCHEDULE_ELSEWHERE)


@pytest.fixture
def storage(bare_cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Storage]:
    storage = Storage(LiveCluster(bare_cluster, f"test-{abs(hash(request.node.name)) % 10**8}"))
    bare_cluster.make_namespace(storage.live.namespace)
    yield storage
    storage.clean()


class Counting(KubeClient):
    """Records the lists."""

    lists: list[str]

    async def list_all(self, resource: Resource, *args: Any, **kwargs: Any) -> list[dict[str, Any]]:
        self.lists.append(resource.plural)
        return await super().list_all(resource, *args, **kwargs)


@pytest.fixture
async def client(bare_cluster: Cluster) -> AsyncIterator[Counting]:
    clock = SteppedClock()
    client = Counting(
        await load_access(api_server(bare_cluster.kubeconfig)), ClientOptions(name="bowline-test", clock=clock)
    )
    client.lists = []
    async with client:
        yield client


async def process(client: KubeClient, **args: Any) -> VolumeBinding:
    plugin = VolumeBinding(BindTimeoutConfig(**args), Settings())
    await plugin.setup(handle_for(plugin.name, client, clock=client.clock))
    return plugin


async def context(storage: Storage, client: KubeClient, name: str, *claims: str) -> BindContext:
    """A context for a pod that mounts the claims; neither pod nor request need be stored."""
    namespace = storage.live.namespace
    request = decode_bind_request(stored(bind_request(name, NODE, namespace, f"uid-{name}"), f"br-{name}"))
    cached_pod = stored(pod(name, namespace, volumes=mounts(*claims)), f"uid-{name}")
    node = await client.get(NODES.as_metadata(), "", NODE)
    log = logging.LoggerAdapter(logging.getLogger(__name__))
    return BindContext(request, cached_pod, node, 1, "a", SystemClock().now(), client, log)


def make_available(storage: Storage, short: str, node: str = NODE, **fields: Any) -> None:
    """Create a volume and report it Available, as the volume controller would."""
    storage.post_volume(short, node, **fields)
    storage.live.cluster.api.patch(f"{storage.volume_path(short)}/status", {"status": {"phase": "Available"}})


def verdict(status: Status) -> tuple[Code, Reason | None, Suggestion | None]:
    return status.code, status.reason, status.suggestion


async def test_a_change_of_the_volume_by_others_ends_the_wait(storage: Storage, client: Counting) -> None:
    storage.make_class()
    make_available(storage, "v")
    storage.make_claim()
    plugin, c = await process(client), await context(storage, client, "pod", "data")
    waiting = await plugin.pre_bind(c)
    assert waiting.code is Code.WAIT
    # The version of the plugin's own write: that write must not wake the request.
    volume = storage.volume("v")
    assert (storage.name("v"), volume["metadata"]["resourceVersion"]) in [
        (ref.key.name, ref.resource_version) for ref in waiting.wake_on
    ]
    assert (await plugin.pre_bind(c)).code is Code.WAIT
    assert storage.volume("v")["metadata"]["resourceVersion"] == volume["metadata"]["resourceVersion"]
    storage.live.cluster.api.patch(storage.volume_path("v"), {"spec": {"claimRef": None}})
    status = await plugin.pre_bind(c)
    assert verdict(status) == ELSEWHERE
    assert "claimRef" not in storage.volume("v")["spec"], "a withdrawn request reserves nothing again"


@pytest.mark.parametrize("spare", [True, False])
async def test_a_volume_deleted_while_it_is_bound_is_replaced(
    storage: Storage, client: Counting, spare: bool
) -> None:
    storage.make_class()
    make_available(storage, "v")
    storage.make_claim()
    plugin, c = await process(client), await context(storage, client, "pod", "data")
    assert (await plugin.pre_bind(c)).code is Code.WAIT
    api = storage.live.cluster.api
    api.patch(storage.volume_path("v"), {"metadata": {"finalizers": None}})
    api.delete(storage.volume_path("v"))
    if spare:
        make_available(storage, "w")
    status = await plugin.pre_bind(c)
    if spare:
        assert status.code is Code.WAIT
        assert storage.volume("w")["spec"]["claimRef"]["name"] == "data"
    else:
        assert verdict(status) == ELSEWHERE
