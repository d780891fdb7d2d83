"""Changes while a volume is being bound, without a volume controller, which could be faster than the test."""

import logging
from collections.abc import Iterator

import pytest

from bowline.api.bindrequest import decode_bind_request
from bowline.framework.binding.context import BindContext
from bowline.framework.config import Settings
from bowline.framework.plugin_status import Code, Status
from bowline.framework.reason import Reason, Suggestion
from bowline.framework.waiting import BindTimeoutConfig
from bowline.kube.resources import NODES
from bowline.localcluster.cluster import Cluster
from bowline.plugins.volume_binding import VolumeBinding
from bowline.testing.builders import bind_request, pod, stored
from bowline.testing.handles import handle_for
from tests.live import LiveCluster
from tests.plugins.storage import Storage, mounts
from tests.reconciler.stage import Stage

NODE = "gpu-node-0"
ELSEWHERE = (Code.FATAL, Reason.VOLUME_CONFLICT, Suggestion.RESCHEDULE_ELSEWHERE)


@pytest.fixture
def storage(bare_cluster: Cluster, stage: Stage) -> Iterator[Storage]:
    """A class, an available volume, and a claim."""
    storage = Storage(LiveCluster(bare_cluster, stage.namespace))
    storage.make_class()
    make_available(storage, "v")
    storage.make_claim()
    yield storage
    storage.clean()


def make_available(storage: Storage, short: str) -> None:
    """Create a volume and report it Available, as the volume controller would."""
    storage.post_volume(short, NODE)
    storage.live.cluster.api.patch(f"{storage.volume_path(short)}/status", {"status": {"phase": "Available"}})


async def call(stage: Stage) -> tuple[VolumeBinding, BindContext]:
    """The plugin, and a context for a pod that mounts the claim; neither pod nor request need be stored."""
    plugin = VolumeBinding(BindTimeoutConfig(), Settings())
    await plugin.setup(handle_for(plugin.name, stage.client))
    request = decode_bind_request(stored(bind_request("pod", NODE, stage.namespace, "uid-pod"), "br-pod"))
    cached_pod = stored(pod("pod", stage.namespace, volumes=mounts("data")), "uid-pod")
    node = await stage.client.get(NODES.as_metadata(), "", NODE)
    log = logging.LoggerAdapter(logging.getLogger(__name__))
    return plugin, BindContext(request, cached_pod, node, 1, "a", stage.clock.now(), stage.client, log)


def verdict(status: Status) -> tuple[Code, Reason | None, Suggestion | None]:
    return status.code, status.reason, status.suggestion


async def test_a_change_of_the_volume_by_others_ends_the_wait(storage: Storage, stage: Stage) -> None:
    plugin, ctx = await call(stage)
    waiting = await plugin.pre_bind(ctx)
    assert waiting.code is Code.WAIT
    # The version of the plugin's own write: that write must not wake the request.
    volume = storage.volume("v")
    assert (storage.name("v"), volume["metadata"]["resourceVersion"]) in [
        (ref.key.name, ref.resource_version) for ref in waiting.wake_on
    ]
    assert (await plugin.pre_bind(ctx)).code is Code.WAIT
    assert storage.volume("v")["metadata"]["resourceVersion"] == volume["metadata"]["resourceVersion"]
    storage.live.cluster.api.patch(storage.volume_path("v"), {"spec": {"claimRef": None}})
    status = await plugin.pre_bind(ctx)
    assert verdict(status) == ELSEWHERE
    assert "claimRef" not in storage.volume("v")["spec"], "a withdrawn request reserves nothing again"


@pytest.mark.parametrize("spare", [True, False])
async def test_a_volume_deleted_while_it_is_bound_is_replaced(storage: Storage, stage: Stage, spare: bool) -> None:
    plugin, ctx = await call(stage)
    assert (await plugin.pre_bind(ctx)).code is Code.WAIT
    api = storage.live.cluster.api
    api.patch(storage.volume_path("v"), {"metadata": {"finalizers": None}})
    api.delete(storage.volume_path("v"))
    if spare:
        make_available(storage, "w")
    status = await plugin.pre_bind(ctx)
    if spare:
        assert status.code is Code.WAIT
        assert storage.volume("w")["spec"]["claimRef"]["name"] == "data"
    else:
        assert verdict(status) == ELSEWHERE
