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

from bowline.api import names
from bowline.api.bindrequest import decode_bind_request
from bowline.api.meta import ObjectKey
from bowline.framework.binding.context import BindContext
from bowline.framework.config import Settings
from bowline.framework.plugin_status import Code, Status
from bowline.framework.reason import Reason, Suggestion
from bowline.framework.waiting import BindTimeoutConfig
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import load_access
from bowline.kube.errors import NoResponse
from bowline.kube.reflector import EventType, Listener, OnEvent, Reflector
from bowline.kube.resources import PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, Resource, Selection
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.plugins.volume_binding import VolumeBinding
from bowline.runtime.clock import SystemClock
from bowline.testing.builders import bind_request, pod, stored
from bowline.testing.handles import handle_for
from tests.live import LiveCluster
from tests.plugins.storage import PROVISIONER, Storage, mounts
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


def test_pods_without_claims_are_skipped(storage: Storage) -> None:
    plugin = VolumeBinding(BindTimeoutConfig(), Settings())
    for ctx, applies in ((context(storage, "none"), False), (context(storage, "one", "data"), True)):
        assert ctx.pod is not None
        assert plugin.applies(ctx.pod, ctx.request) is applies
    assert not plugin.has_side_effects(context(storage, "one", "data").request, None)
    assert not plugin.supported_allocations(context(storage, "one", "data").request)


async def test_a_provisioner_that_never_answers_does_not_keep_the_claim(storage: Storage, client: KubeClient) -> None:
    """The wait for it ends in the reconciler, which then asks the plugin."""
    storage.make_class(PROVISIONER, name="slow")
    storage.make_claim("silent", cls="slow")
    storage.make_volume("local")
    storage.make_claim("local")
    plugin = await process(client)
    expired = Status.fatal("waited", Reason.WAIT_TIMEOUT, Suggestion.RESCHEDULE_ELSEWHERE)
    ctx = context(storage, "silent", "silent")
    assert (await plugin.pre_bind(ctx)).code is Code.WAIT
    assert storage.asked_for("silent") == "gpu-node-0"
    denied = Status.fatal("denied", suggestion=Suggestion.RESCHEDULE_ELSEWHERE)
    assert await plugin.on_terminal_failure(ctx, denied) is None, "there is no volume, so any node helps"
    assert names.SELECTED_NODE not in (storage.claim("silent")["metadata"].get("annotations") or {})
    local = context(storage, "local", "local")
    assert (await plugin.pre_bind(local)).code in (Code.OK, Code.WAIT)
    advised = await plugin.on_terminal_failure(local, expired)
    assert advised is not None
    assert (advised.suggestion, advised.reason) == (Suggestion.RETRY_SAME_NODE, Reason.WAIT_TIMEOUT)


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


async def mirror(
    plugin: VolumeBinding, client: KubeClient, observe: OnEvent = lambda *_: None
) -> list[tuple[Reflector, list[tuple[EventType, str]]]]:
    """List what the plugin watches, once, as with a watch that hangs afterwards. ``observe`` gets the events, too."""
    mirrors = []
    for source in plugin.event_sources():
        events: list[tuple[EventType, str]] = []

        def on_event(
            kind: EventType, key: ObjectKey, old: Any, new: Any, event_log: Any = events, source: Any = source
        ) -> None:
            event_log.append((kind, key.name))
            if source.on_change is not None:
                source.on_change(old, new)
            observe(kind, key, old, new)

        reflector = Reflector(
            client, Selection(source.resource), listener=Listener(on_event), transform=source.transform
        )
        if source.attach is not None:
            source.attach(reflector)
        task = asyncio.create_task(reflector.run())
        await reflector.synced.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        mirrors.append((reflector, events))
    return mirrors


async def test_a_lagging_cache_costs_one_read_and_nothing_else(storage: Storage, client: KubeClient) -> None:
    for name in ("first", "second", "third"):
        storage.make_claim(name)
    storage.make_volume("a")
    plugin, second_plugin = await process(client), await process(client)
    await mirror(plugin, client)
    # Bound by another process meanwhile: the cache still shows it free.
    assert (await result_of(second_plugin, context(storage, "first", "first"))).code is Code.OK
    failure = await result_of(plugin, context(storage, "second", "second"))
    assert failure.code is Code.FATAL
    # Created meanwhile: it is not in the cache, which proves nothing.
    storage.make_volume("b")
    assert (await result_of(plugin, context(storage, "third", "third"))).code is Code.OK
    assert await bound_volume(storage, "third") == "b"


async def test_a_stale_cache_of_several_volumes_hides_no_free_one(storage: Storage, client: KubeClient) -> None:
    for name in ("first", "second", "third"):
        storage.make_claim(name)
    for short in ("a", "b", "c"):
        storage.make_volume(short)
    plugin, second_plugin = await process(client), await process(client)
    await mirror(plugin, client)
    for name in ("first", "second"):
        assert (await result_of(second_plugin, context(storage, name, name))).code is Code.OK
    status = await plugin.pre_bind(context(storage, "third", "third"))
    assert status.reasons == (f"claim third is being bound to volume {storage.name('c')}",)


async def test_an_awaited_claim_is_used_from_its_event(storage: Storage, cluster: Cluster) -> None:
    storage.make_claim()
    storage.make_volume("v")
    async with counting(cluster) as client:
        plugin = await process(client)
        (claims, events), *_ = await mirror(plugin, client)
        watching = asyncio.create_task(claims.run())
        try:
            c = context(storage, "pod", "data")
            assert (await plugin.pre_bind(c)).code is Code.WAIT
            await until(lambda: (EventType.DELETED, "data") in events)
            assert await plugin.pre_bind(c) == Status.ok()
            assert client.read == ["data"], "before the volume was written, and never again"
            # The caches receive no later event.
            assert await plugin.pre_bind(c) == Status.ok()
            assert client.read == ["data", "data"]
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


async def test_a_volume_ends_a_wait_if_it_is_withdrawn(storage: Storage, client: KubeClient) -> None:
    storage.make_claim()
    storage.make_volume("v")
    plugin, c = await process(client), context(storage, "pod", "data")
    second_request = context(storage, "other", "data").request.key
    hints: list[tuple[str, bool, bool]] = []
    hint = next(source.queueing_hint for source in plugin.event_sources() if source.resource == PERSISTENTVOLUMES)
    assert hint is not None

    def observe(_: EventType, key: ObjectKey, __: Any, new: Any) -> None:
        if key.name == storage.name("v"):
            state = f"{new['volume'].phase} {bool(new['volume'].claim_uid)}"
            hints.append((state, hint(c.request.key, new), hint(second_request, new)))

    _, (volumes, _), _ = await mirror(plugin, client, observe)
    hints.clear()
    watching = asyncio.create_task(volumes.run())
    try:
        assert (await result_of(plugin, c)).code is Code.OK
        await until(lambda: hints and hints[-1][0] == "Bound True")
        assert hints == [("Available True", False, True), ("Bound True", False, True)]
        storage.live.cluster.api.patch(storage.volume_path("v"), {"spec": {"claimRef": None}})
        await until(lambda: len(hints) > 2)
        assert hints[2] == ("Bound False", True, True)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def is_cached(volumes: Reflector, key: ObjectKey, phase: str) -> bool:
    """Return whether the cache has the volume in this phase."""
    return key in volumes.store and volumes.store[key]["volume"].phase == phase


async def test_the_caches_contain_only_usable_objects(storage: Storage, client: KubeClient) -> None:
    plugin = await process(client)
    (claims, events), (volumes, _), (classes, _) = await mirror(plugin, client)
    tasks = [asyncio.create_task(reflector.run()) for reflector in (claims, volumes, classes)]
    try:
        storage.make_claim("free")
        storage.make_claim("used")
        storage.make_volume("used", size="2Gi")
        storage.make_volume("free", size="3Gi")
        free, used = ObjectKey("", storage.name("free")), ObjectKey("", storage.name("used"))
        # A volume that is not Available yet is used only if there is no other.
        await until(lambda: is_cached(volumes, free, "Available") and is_cached(volumes, used, "Available"))
        assert (await result_of(plugin, context(storage, "pod", "used"))).code is Code.OK
        await until(lambda: (EventType.DELETED, "used") in events)
        assert await bound_volume(storage, "used") == "used"
        await until(lambda: is_cached(volumes, used, "Bound"))
        await plugin.forget(context(storage, "pod", "used").request.key)
        assert used not in volumes.store
        namespace = storage.live.namespace
        assert [key.name for key in claims.store if key.namespace == namespace] == ["free"]
        assert set(claims.store[ObjectKey(namespace, "free")]["metadata"]) == {
            "namespace",
            "name",
            "uid",
            "resourceVersion",
        }
        assert free in volumes.store
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Forgetful(KubeClient):
    """Loses the reply to its nth write, whatever it was."""

    lose = 0

    async def patch(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        try:
            return await super().patch(*args, **kwargs)
        finally:
            self.lose -= 1
            if self.lose == 0:
                raise NoResponse("lost on purpose")


@pytest.mark.parametrize("crash", [pytest.param(False, id="the same process"), pytest.param(True, id="the next one")])
@pytest.mark.parametrize("nth", [1, 2])
async def test_a_lost_reply_is_followed_by_a_read(storage: Storage, cluster: Cluster, nth: int, crash: bool) -> None:
    for short in ("a", "b", "spare"):
        storage.make_volume(short)
    for name in ("one", "two"):
        storage.make_claim(name)
    async with Forgetful(
        await load_access(api_server(cluster.kubeconfig)), ClientOptions(name="bowline-test")
    ) as kube_client:
        client = cast(Forgetful, kube_client)
        plugin, c = await process(client), context(storage, "pod", "one", "two")
        client.lose = nth
        with pytest.raises(NoResponse):
            await plugin.pre_bind(c)
        if crash:
            plugin, c = await process(client), context(storage, "pod", "one", "two")
        assert await result_of(plugin, c) == Status.ok()
    assert await bound_volume(storage, "one") != await bound_volume(storage, "two")
    # One volume for each claim, and none that was kept in vain.
    reserved_volumes = [short for short in ("a", "b", "spare") if storage.volume(short)["spec"].get("claimRef")]
    assert len(reserved_volumes) == 2


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


async def test_a_deleted_node_is_reported(storage: Storage, client: KubeClient) -> None:
    storage.make_claim()
    c = context(storage, "pod", "data")
    absent = {"metadata": {"name": "no-such-node", "resourceVersion": "1"}}
    c = BindContext(c.request, c.pod, absent, 1, "a", c.deadline, client, c.log)
    status = await (await process(client)).pre_bind(c)
    assert (status.reason, status.suggestion) == (Reason.NODE_GONE, Suggestion.RESCHEDULE_ELSEWHERE)


async def test_completed_requests_leave_nothing_in_memory(storage: Storage, client: KubeClient) -> None:
    storage.make_claim()
    storage.make_volume("v")
    plugin, c = await process(client), context(storage, "pod", "data")
    assert (await result_of(plugin, c)).code is Code.OK
    assert (len(plugin._storage.assume_cache), len(plugin._storage.bound_claims)) == (1, 1)
    await plugin.forget(c.request.key)
    assert (len(plugin._storage.assume_cache), len(plugin._storage.bound_claims)) == (0, 0)
    assert names.BIND_COMPLETED in storage.claim()["metadata"]["annotations"]
