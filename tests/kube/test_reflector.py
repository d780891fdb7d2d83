"""Reflectors against the real API server, with changes, faults and restarts."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bowline.api.meta import Object, ObjectKey, uid_of
from bowline.kube.binding import post_binding
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ClusterAccess
from bowline.kube.metrics import KubeMetrics
from bowline.kube.reflector import EventType, Listener, Reflector
from bowline.kube.resources import (
    CLUSTERPOLICIES,
    CONFIGMAPS,
    DEVICETAINTRULES,
    LEASES,
    PODS,
    RESOURCESLICES,
    Resource,
    Selection,
)
from bowline.localcluster.cluster import Cluster
from bowline.testing.builders import configmap
from bowline.testing.clock import SteppedClock
from bowline.testing.fault_proxy.faults import DropBefore, FailWatch, Fault, FaultAnswer, Page
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.kube.objects import pod
from tests.waiting import until

CUSTOM_RESOURCE_DEFINITIONS = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
ADDED, MODIFIED, DELETED = EventType.ADDED, EventType.MODIFIED, EventType.DELETED


class CountingClient(KubeClient):
    """Counts the watches that it opens."""

    watches = 0

    def watch(self, *args: Any, **kwargs: Any) -> AsyncGenerator[dict[str, Any], None]:
        self.watches += 1
        return super().watch(*args, **kwargs)


class Recorder:
    """The events of a reflector: type, name, and ``data.x`` before and after."""

    def __init__(self) -> None:
        self.all: list[tuple[EventType, str, str | None, str | None]] = []

    def __call__(self, kind: EventType, key: ObjectKey, old: Object | None, new: Object | None) -> None:
        def x(seen: Object | None) -> str | None:
            return str((seen.get("data") or {}).get("x", "")) if seen is not None else None

        self.all.append((kind, key.name, x(old), x(new)))

    def of(self, name: str) -> list[tuple[EventType, str | None, str | None]]:
        return [(kind, old, new) for kind, object_name, old, new in self.all if object_name == name]


@asynccontextmanager
async def running(reflector: Reflector, *, synced: bool = True) -> AsyncIterator[Reflector]:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(reflector.run())
        if synced:
            await until(reflector.synced.is_set)
        yield reflector
        task.cancel()


async def test_every_change_since_the_first_list_is_delivered_once(client: KubeClient, namespace: str) -> None:
    await client.create(CONFIGMAPS, namespace, configmap("there", x="0"))
    events = Recorder()
    async with running(Reflector(client, Selection(CONFIGMAPS, namespace), listener=Listener(events))) as reflector:
        assert events.all == [(ADDED, "there", None, "0")], "synced is set after the list was delivered"
        await client.create(CONFIGMAPS, namespace, configmap("new", x="1"))
        await client.patch(CONFIGMAPS, namespace, "new", {"data": {"x": "2"}})
        await client.delete(CONFIGMAPS, namespace, "new")
        await until(lambda: len(events.all) == 4)
        assert events.of("new") == [(ADDED, None, "1"), (MODIFIED, "1", "2"), (DELETED, "2", None)]
        assert list(reflector.store) == [ObjectKey(namespace, "there")]
        assert reflector.last_error is None
        assert reflector.last_contact is not None


async def test_an_object_that_leaves_the_selection_is_deleted_with_its_old_content(
    client: KubeClient, namespace: str
) -> None:
    seen: list[tuple[EventType, Object | None, Object | None]] = []
    selection = Selection(PODS, namespace, field_selector="spec.nodeName=")
    made = await client.create(PODS, namespace, pod("a"))
    listener = Listener(lambda kind, _, old, new: seen.append((kind, old, new)))
    reflector = Reflector(client, selection, listener=listener)
    async with running(reflector):
        await post_binding(client, ObjectKey(namespace, "a"), uid_of(made), "n1", {})
        await until(lambda: len(seen) == 2)
    (kind, old, new) = seen[1]
    assert (kind, new) == (DELETED, None)
    assert old is not None
    assert "nodeName" not in old["spec"]


async def test_after_an_api_server_restart_a_relist_delivers_the_changes(
    bare_cluster: Cluster,
    access: ClusterAccess,
    client: KubeClient,
    proxy: FaultProxy,
    proxied: ClusterAccess,
    namespace: str,
) -> None:
    """The watch cache starts empty after a restart: a resourceVersion older than a later change gets a 410.

    By the clock the outage is short: after a long one a reflector trusts no version.
    """
    for name in ("stays", "changes", "deleted", "replaced"):
        await client.create(CONFIGMAPS, namespace, configmap(name, x="0"))
    events = Recorder()
    proxy.add(FaultRule(DropBefore(), CallMatch(("watch",))))
    cut_off = KubeClient(proxied, ClientOptions(clock=SteppedClock()))
    reflector = Reflector(cut_off, Selection(CONFIGMAPS, namespace), listener=Listener(events))
    async with cut_off, running(reflector):
        await until(lambda: reflector.last_error is not None)
        events.all.clear()
        await client.patch(CONFIGMAPS, namespace, "changes", {"data": {"x": "1"}})
        await client.delete(CONFIGMAPS, namespace, "deleted")
        await client.delete(CONFIGMAPS, namespace, "replaced")
        await client.create(CONFIGMAPS, namespace, configmap("replaced", x="2"))
        await client.create(CONFIGMAPS, namespace, configmap("created", x="3"))
        await asyncio.to_thread(bare_cluster.stop_apiserver)
        await asyncio.to_thread(bare_cluster.start_apiserver)
        proxy.clear()
        await until(lambda: len(events.all) >= 5)
        async with KubeClient(access) as fresh:
            await fresh.patch(CONFIGMAPS, namespace, "created", {"data": {"x": "4"}})
        await until(lambda: events.all[-1] == (MODIFIED, "created", "3", "4"))
    assert events.of("stays") == [], "unchanged: no event"
    assert events.of("changes") == [(MODIFIED, "0", "1")]
    assert events.of("deleted") == [(DELETED, "0", None)]
    assert events.of("replaced") == [(DELETED, "0", None), (ADDED, None, "2")]
    assert events.of("created") == [(ADDED, None, "3"), (MODIFIED, "3", "4")]


async def test_a_future_or_expired_version_causes_a_relist(
    access: ClusterAccess, client: KubeClient, namespace: str
) -> None:
    registry = CollectorRegistry()
    impatient = CountingClient(access, ClientOptions(metrics=KubeMetrics(registry), watch_silence_s=0.5))
    async with impatient, running(Reflector(impatient, Selection(CONFIGMAPS, namespace))) as reflector:
        await client.create(CONFIGMAPS, namespace, configmap("a"))
        await until(lambda: len(reflector.store) == 1)
        # The idle timeout ends the watch repeatedly; each new watch continues at the last resourceVersion.
        await until(lambda: impatient.watches >= 3)
        await client.create(CONFIGMAPS, namespace, configmap("b"))
        await until(lambda: len(reflector.store) == 2)
        relists = registry.get_sample_value("bowline_reflector_relists_total", {"resource": "configmaps"})
        assert relists == 1
        assert registry.get_sample_value("bowline_reflector_objects", {"resource": "configmaps"}) == 2
        contact = {"resource": "configmaps"}
        assert registry.get_sample_value("bowline_reflector_last_contact_timestamp_seconds", contact)


async def test_a_missing_right_is_logged_once_and_used_when_granted(
    bare_cluster: Cluster, unprivileged: KubeClient, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(Reflector(unprivileged, Selection(CONFIGMAPS, namespace)), synced=False) as reflector:
        await until(lambda: "list and watch on configmaps in namespace" in (reflector.last_error or ""))
        role = ["role", "reader", "--verb=list,watch", "--resource=configmaps", f"--namespace={namespace}"]
        binding = ["--role=reader", f"--serviceaccount={namespace}:unprivileged", f"--namespace={namespace}"]
        bare_cluster.kubectl("create", *role)
        bare_cluster.kubectl("create", "rolebinding", "reader", *binding)
        await until(reflector.synced.is_set)
        assert reflector.last_error is None
    assert len([line for line in caplog.records if "not granted" in str(line.__dict__.get("problem"))]) == 1


def definition(plural: str, **version: Any) -> dict[str, Any]:
    """Return a CRD ``<plural>.test.bowline.dev`` with a status phase."""
    schema = {
        "type": "object",
        "properties": {"status": {"type": "object", "properties": {"phase": {"type": "string"}}}},
    }
    return {
        "metadata": {"name": f"{plural}.test.bowline.dev"},
        "spec": {
            "group": "test.bowline.dev",
            "scope": "Namespaced",
            "names": {"plural": plural, "kind": plural.capitalize()},
            "versions": [
                {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}, **version}
            ],
        },
    }


def custom(plural: str) -> Resource:
    return Resource("test.bowline.dev", "v1", plural, plural.capitalize())


async def test_a_resource_that_is_installed_later_is_cached(client: KubeClient, namespace: str) -> None:
    selection = Selection(custom("laters"), namespace)
    async with running(Reflector(client, selection), synced=False) as reflector:
        await until(lambda: "install its CustomResourceDefinition" in (reflector.last_error or ""))
        await client.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition("laters"))
        await until(reflector.synced.is_set)


@pytest.mark.parametrize(
    "resource",
    [
        pytest.param(CLUSTERPOLICIES, id="no such group"),
        pytest.param(replace(RESOURCESLICES, version="v9"), id="no such version of the group"),
        pytest.param(replace(DEVICETAINTRULES, plural="nothings"), id="no such resource of the version"),
    ],
)
async def test_a_resource_that_is_not_served_is_no_outage(access: ClusterAccess, resource: Resource) -> None:
    """The API server answers in plain text, and no other call of an idle process shows that it is available."""
    probes: list[str] = []

    async def probe() -> None:
        probes.append("probe")

    registry = CollectorRegistry()
    labels = {"verb": "list", "resource": resource.plural, "code": "404"}
    async with KubeClient(access, ClientOptions(metrics=KubeMetrics(registry))) as client:
        assert not await client.serves(resource)
        probing = asyncio.create_task(client.availability.run(probe, lambda: None))
        async with running(Reflector(client, Selection(resource, is_optional=True)), synced=False) as reflector:
            await until(lambda: (registry.get_sample_value("bowline_kube_requests_total", labels) or 0) >= 5)
            assert reflector.first_list_ended.is_set()
            assert "does not serve" in (reflector.last_error or "")
        probing.cancel()
    assert probes == []


async def test_a_404_of_a_proxy_does_not_end_the_first_list(
    proxy: FaultProxy, proxy_client: KubeClient, namespace: str
) -> None:
    """The process would work without what is stored."""
    proxy.add(FaultRule(Page(404), CallMatch(("list",), "leases")))
    async with running(Reflector(proxy_client, Selection(LEASES, namespace)), synced=False) as reflector:
        await until(lambda: "a proxy may have sent it" in (reflector.last_error or ""))
        assert not reflector.first_list_ended.is_set()
        proxy.clear()
        await until(reflector.first_list_ended.is_set)
        assert reflector.synced.is_set()


async def test_an_unsupported_field_selector_is_left_out(client: KubeClient, namespace: str) -> None:
    await client.create(CUSTOM_RESOURCE_DEFINITIONS, "", definition("plains"))
    selectable = definition("selects", selectableFields=[{"jsonPath": ".status.phase"}])
    await client.create(CUSTOM_RESOURCE_DEFINITIONS, "", selectable)
    for plural in ("plains", "selects"):
        async with running(Reflector(client, Selection(custom(plural), namespace))):
            pass  # the resource is served
    selector = "status.phase!=Succeeded"
    async with running(Reflector(client, Selection(custom("selects"), namespace, field_selector=selector))):
        pass
    plain = Selection(custom("plains"), namespace, field_selector=selector)
    async with running(Reflector(client, plain), synced=False) as reflector:
        await until(lambda: "field label not supported" in (reflector.last_error or ""))
    async with running(Reflector(client, plain, fallback=True)) as reflector:
        assert reflector.selection.field_selector == ""


@pytest.mark.parametrize(
    "fault",
    [pytest.param(FaultAnswer(500), id="in place of the watch"), pytest.param(FailWatch(code=500), id="in it")],
)
async def test_a_watch_with_only_errors_causes_a_relist(
    proxy: FaultProxy, proxy_client: KubeClient, client: KubeClient, namespace: str, fault: Fault
) -> None:
    watches = CallMatch(("watch",), "configmaps", namespace=namespace)
    proxy.add(FaultRule(fault, watches))
    async with running(Reflector(proxy_client, Selection(CONFIGMAPS, namespace))) as reflector:
        await client.create(CONFIGMAPS, namespace, configmap("meanwhile"))
        if isinstance(fault, FailWatch):
            # No watch delivers the event that the fault replaces, so only a list contains the object.
            await client.patch(CONFIGMAPS, namespace, "meanwhile", {"data": {"x": "1"}})
        await until(lambda: ObjectKey(namespace, "meanwhile") in reflector.store)
        await until(lambda: sum(e.call.verb == "list" for e in proxy.exchanges()) >= 2)
