"""On a real API server: an object that is not decoded is metadata in lists and watches, and an error in a get."""

import argparse
import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from bowline.api.meta import ObjectKey, ObjectRef, is_reduced, key_of, uid_of
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ClusterAccess
from bowline.kube.errors import ApiError, Unreadable
from bowline.kube.metrics import KubeMetrics
from bowline.kube.reflector import Reflector
from bowline.kube.resources import BINDREQUESTS, CONFIGMAPS, PODS, RESOURCECLAIMS, Resource, Selection
from bowline.localcluster.cluster import Cluster
from bowline.testing.builders import bind_request, configmap, pod, resource_claim
from bowline_cli.cluster import connected
from bowline_cli.reader import Reader, Unread
from tests import hostile
from tests.waiting import until

Build = Callable[[str], dict[str, Any]]
BUILD: dict[Resource, Build] = {
    PODS: pod,
    CONFIGMAPS: lambda name: {"apiVersion": "v1", "kind": "ConfigMap", **configmap(name)},
    BINDREQUESTS: bind_request,
    RESOURCECLAIMS: resource_claim,
}
LABELS = {"team": 'a","managedFields":['}
# Which texts are refused is a table (tests/unit/kube).
CASES = [
    *(
        pytest.param(PODS, hostile.with_managed_fields, text, id=f"pods: {case} in managedFields")
        for case, text in hostile.MANAGED_FIELDS.items()
    ),
    pytest.param(BINDREQUESTS, hostile.with_managed_fields, hostile.MANAGED_FIELDS["levels"], id="bindrequests"),
    *(
        pytest.param(RESOURCECLAIMS, hostile.with_parameters, hostile.PARAMETERS[case], id=f"a claim: {case}")
        for case in ("levels", "the end of an object")
    ),
]


@pytest.mark.parametrize(("resource", "spoil", "text"), CASES)
async def test_it_hides_no_other_object(
    access: ClusterAccess,
    namespace: str,
    resource: Resource,
    spoil: Callable[[dict[str, Any], bytes], bytes],
    text: bytes,
) -> None:
    def named(name: str) -> dict[str, Any]:
        body = BUILD[resource](name)
        return {**body, "metadata": {"name": name, "namespace": namespace, "annotations": LABELS}}

    registry, reports = CollectorRegistry(), list[tuple[ObjectRef, str]]()
    async with KubeClient(access, ClientOptions(name="bowline-test", metrics=KubeMetrics(registry))) as client:
        client.unreadable.follow(lambda ref, why: reports.append((ref, why)))
        selection = Selection(resource, namespace)
        reflectors = [Reflector(client, selection), Reflector(client, Selection(resource.as_metadata(), namespace))]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(reflector.run()) for reflector in reflectors]
            await asyncio.gather(*(reflector.synced.wait() for reflector in reflectors))
            await client.create(resource, namespace, named("a"))
            await hostile.store(client, resource, namespace, spoil(named("hostile"), text))
            await client.create(resource, namespace, named("z"))

            with pytest.raises(Unreadable, match=f"{resource.plural} {namespace}/hostile"):
                await client.get(resource, namespace, "hostile")
            metadata = (await client.get(resource.as_metadata(), namespace, "hostile"))["metadata"]
            assert metadata["annotations"] == LABELS
            for selected in (resource, resource.as_metadata()):
                items = {key_of(item).name: item for item in await client.list_all(selected, namespace)}
                assert list(items) == ["a", "hostile", "z"]
                assert is_reduced(items["hostile"])
                assert items["hostile"]["metadata"]["annotations"] == LABELS
                assert items["a"].get("kind") == items["z"].get("kind")

            late = Reflector(client, selection)
            tasks.append(group.create_task(late.run()))
            await late.synced.wait()
            with suppress(Unreadable):
                await client.delete(resource, namespace, "hostile", grace_period_s=0)
            await client.create(resource, namespace, named("later"))
            others = {ObjectKey(namespace, name) for name in ("a", "z", "later")}
            for reflector in (*reflectors, late):
                await until(partial(caches, reflector, others))
            for task in tasks:
                task.cancel()
    ((ref, why),) = reports
    assert (ref.kind, ref.key, ref.uid) == (resource.kind, ObjectKey(namespace, "hostile"), metadata["uid"])
    assert "values" in why or "JSON is refused" in why
    count = registry.get_sample_value("bowline_kube_unreadable_objects_total", {"resource": resource.plural})
    assert (count or 0) >= 2


def caches(reflector: Reflector, keys: Collection[ObjectKey]) -> bool:
    return set(reflector.store) == keys


async def test_a_write_is_applied_whose_reply_is_not_decoded(client: KubeClient, namespace: str) -> None:
    config_map = BUILD[CONFIGMAPS]("a")
    text = hostile.MANAGED_FIELDS["levels"]
    await hostile.store(client, CONFIGMAPS, namespace, hostile.with_managed_fields(config_map, text))
    with pytest.raises(Unreadable):
        await client.patch(CONFIGMAPS, namespace, "a", {"metadata": {"labels": {"changed": "yes"}}})
    reply = await client.patch(CONFIGMAPS.as_metadata(), namespace, "a", {"metadata": {"labels": {"again": "yes"}}})
    assert reply["metadata"]["labels"] == {"changed": "yes", "again": "yes"}
    with suppress(ApiError):
        await client.delete(CONFIGMAPS, namespace, "a", uid=uid_of(reply))
    assert await client.list_all(CONFIGMAPS, namespace) == []


@pytest.mark.usefixtures("kubectl_in_path")
async def test_the_commands_read_all_others(
    bare_cluster: Cluster, client: KubeClient, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = hostile.MANAGED_FIELDS["levels"]
    await client.create(PODS, namespace, pod("a", namespace))
    await hostile.store(client, PODS, namespace, hostile.with_managed_fields(pod("hostile", namespace), text))
    await client.create(PODS, namespace, pod("z", namespace))

    def read() -> tuple[list[str], list[str], Any]:
        with connected(argparse.Namespace(kubeconfig=str(bare_cluster.kubeconfig), context=None)) as api:
            reader, path = Reader(api), PODS.path(namespace)
            names = [
                [item["metadata"]["name"] for item in items] for items in (reader.pages(path), reader.list(path))
            ]
            return names[0], names[1], reader.get(f"{path}/hostile")

    pages, listed, pod_itself = await asyncio.to_thread(read)
    with suppress(Unreadable):
        await client.delete(PODS, namespace, "hostile", grace_period_s=0)  # others use the cluster
    errors = capsys.readouterr().err
    assert pages == listed == ["a", "z"]
    assert isinstance(pod_itself, Unread)
    assert "JSON is refused" in pod_itself.reason
    assert f"not read: /api/v1/namespaces/{namespace}/pods: {namespace}/hostile: its JSON is refused" in errors
