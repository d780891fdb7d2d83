"""A device that was tainted after the decision is refused, on a real API server with the plugin's own watches.

DeviceTaintRules are served in v1 from Kubernetes 1.37 on; without them that case is skipped.
"""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from bowline.framework.plugin_status import Code, Status
from bowline.framework.reason import Reason, Suggestion
from bowline.kube.config import load_access
from bowline.kube.errors import NotFound
from bowline.kube.reflector import Reflector
from bowline.kube.resources import DEVICETAINTRULES, RESOURCESLICES, Resource, Selection
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.plugins.dynamic_resources.plugin import DynamicResources
from tests.live import Live
from tests.plugins.claim_case import Case, CrashingClient, new_plugin
from tests.plugins.claims import (
    API,
    DRIVER,
    NODE,
    claim,
    claim_decisions,
    is_free,
    publish,
    reserved_by,
)
from tests.waiting import until

TAINT = {"key": "broken", "effect": "NoSchedule"}
RULE = {"deviceSelector": {"driver": DRIVER, "device": "d0"}, "taint": TAINT}


@pytest.fixture
async def case(cluster: Cluster) -> AsyncIterator[Case]:
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    cluster.make_namespace(namespace)
    publish(cluster)
    client = CrashingClient(await load_access(api_server(cluster.kubeconfig)))
    async with client:
        yield Case(client, namespace)
    cluster.kubectl("delete", "namespace", namespace, "--wait=false")


@pytest.fixture
async def plugin(case: Case) -> AsyncIterator[DynamicResources]:
    """The plugin with its watches of taints running."""
    made = await new_plugin(case.client)
    watches = []
    for source in made.event_sources():
        if source.resource in (RESOURCESLICES, DEVICETAINTRULES) and source.attach is not None:
            watch = Reflector(case.client, Selection(source.resource), transform=source.transform)
            source.attach(watch)
            watches.append(asyncio.create_task(watch.run()))
    yield made
    for task in watches:
        task.cancel()
    await asyncio.gather(*watches, return_exceptions=True)


def cached(plugin: DynamicResources) -> int:
    """The number of objects with a taint in the caches."""
    return sum(len(watch.store) for watch in plugin.taints.watches.values())


async def taint_slice(case: Case, *taints: dict[str, str]) -> None:
    """Let the driver taint the device d0."""
    name = f"{NODE}-{DRIVER}"
    resource_slice = await case.client.get(RESOURCESLICES, "", name)
    resource_slice["spec"]["devices"][0]["taints"] = [*taints]
    await case.client.update(RESOURCESLICES, "", name, resource_slice)


async def taint_by_rule(case: Case, *taints: dict[str, str]) -> None:
    """Let an administrator taint the device d0, or end that."""
    if not taints:
        await case.client.delete(DEVICETAINTRULES, "", "test")
        return
    spec = {**RULE, "taint": taints[0]}
    await case.client.create(DEVICETAINTRULES, "", {"metadata": {"name": "test"}, "spec": spec})


def require_rules(cluster: Cluster) -> None:
    """Skip the test if the API server does not serve DeviceTaintRules in Bowline's version."""
    if DEVICETAINTRULES.plural not in {entry["name"] for entry in cluster.api.get(API)["resources"]}:
        pytest.skip("this Kubernetes does not serve DeviceTaintRules in v1")


@pytest.fixture(params=[taint_slice, taint_by_rule], ids=["by the driver", "by a rule"])
async def taint(case: Case, cluster: Cluster, request: pytest.FixtureRequest) -> AsyncIterator[Callable[..., Any]]:
    """Taints the device d0; the taint ends with the test."""
    if request.param is taint_by_rule:
        require_rules(cluster)
    yield request.param
    with suppress(NotFound):  # the test has ended the taint
        await request.param(case)


async def test_a_device_that_was_tainted_after_the_decision_is_refused(
    case: Case, plugin: DynamicResources, taint: Callable[..., Any]
) -> None:
    tolerant = claim("tolerant")
    tolerant["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = [{"key": "broken", "operator": "Exists"}]
    for body in (claim("one"), claim("other"), tolerant):
        await case.create(body)
    await taint(case, TAINT)
    await until(lambda: cached(plugin) == 1)

    async def pre_bind(name: str, device: str, pod: str) -> tuple[Status, str]:
        created_pod = await case.pod(pod, resourceClaims=[{"name": "dev", "resourceClaimName": name}])
        answer = await plugin.pre_bind(await case.context(created_pod, **claim_decisions(device)))
        return answer, created_pod["metadata"]["uid"]

    answer, _ = await pre_bind("one", "d0", "refused")
    assert (answer.code, answer.reason) == (Code.FATAL, Reason.DEVICE_CONFLICT)
    assert answer.suggestion is Suggestion.RESCHEDULE_ELSEWHERE
    assert is_free(await case.claim("one"))
    assert (await pre_bind("other", "d1", "on-another-device"))[0] == Status.ok()
    answer, uid = await pre_bind("tolerant", "d0", "tolerates")
    assert answer == Status.ok()
    assert reserved_by(await case.claim("tolerant")) == {uid}
    # A pod beside those that use the claim already, as kube-scheduler shares it.
    await taint(case)
    await until(lambda: cached(plugin) == 0)
    answer, first = await pre_bind("one", "d0", "first")
    assert answer == Status.ok()
    await taint(case, TAINT)
    await until(lambda: cached(plugin) == 1)
    answer, second = await pre_bind("one", "d0", "second")
    assert answer == Status.ok()
    assert reserved_by(await case.claim("one")) == {first, second}


@pytest.fixture
def tainted_by_driver(pair: Live) -> Iterator[Live]:
    """The pair, with the device d0 tainted in its ResourceSlice."""
    publish(pair.cluster)
    path = f"{API}/resourceslices/{NODE}-{DRIVER}"
    devices = pair.cluster.api.get(path)["spec"]["devices"]
    devices[0]["taints"] = [TAINT]
    pair.cluster.api.patch(path, {"spec": {"devices": devices}})
    yield pair
    publish(pair.cluster)


@pytest.fixture
def tainted_by_rule(pair: Live) -> Iterator[Live]:
    """The pair, with the device d0 tainted by an administrator."""
    publish(pair.cluster)
    require_rules(pair.cluster)
    path = f"{API}/{DEVICETAINTRULES.plural}"
    pair.cluster.api.post(path, {"metadata": {"name": "test"}, "spec": RULE})
    yield pair
    pair.cluster.api.delete(f"{path}/test")


def cached_by(live: Live, resource: Resource) -> int:
    """The number of tainted objects in the reconciler's cache: an optional watch has no metrics."""
    _, page = live.pair.reconcilers[0].get_debug()
    watches = json.loads(page)["watches"].values()
    return sum(watch["objects"] for watch in watches if watch["selection"] == str(resource))


@pytest.mark.parametrize(
    ("source", "resource"),
    [
        pytest.param("tainted_by_driver", RESOURCESLICES, id="by the driver"),
        pytest.param("tainted_by_rule", DEVICETAINTRULES, id="by a rule"),
    ],
)
def test_the_running_reconciler_refuses_a_tainted_device(
    request: pytest.FixtureRequest, source: str, resource: Resource
) -> None:
    """With the rights of the chart: to watch taints, and to read the one in the cache before it ends a request."""
    live: Live = request.getfixturevalue(source)
    live.until(f"the reconciler caches the {resource.kind}", lambda: cached_by(live, resource) == 1)
    live.create(claim("one"))
    live.create_pod(resourceClaims=[{"name": "dev", "resourceClaimName": "one"}])
    live.request_bind(**claim_decisions("d0"))
    reason = live.phase("pod", "Failed", "Succeeded")["status"].get("reason", "")
    assert f"device {DRIVER}/{NODE}/d0 has the taint broken:NoSchedule ({resource.kind} " in reason
