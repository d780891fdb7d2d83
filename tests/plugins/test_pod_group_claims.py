"""Claims that a PodGroup of Kubernetes shares among its pods (KEP-5729), beside kube-scheduler and its controllers.

Kubernetes 1.37 serves PodGroups as v1beta1 if that and two beta gates are enabled; older versions are skipped.
"""

import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from bowline.framework.interface.status import Status
from bowline.kube.client import KubeClient
from bowline.kube.config import load_access
from bowline.kube.resources import PODGROUPS, PODS
from bowline.localcluster.assets.versions import release_for
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.localcluster.pair import Pair
from tests.live import LiveCluster
from tests.pairs import own_namespace
from tests.plugins.claim_case import Case, new_plugin
from tests.plugins.claims import NODE, claim, claim_decisions, get_claim, is_free, template
from tests.plugins.kube_scheduler import bound, needs_kube_scheduler
from tests.plugins.test_dynamic_resources_as_kube_scheduler import comparable
from tests.pod_groups import kubernetes_pod_group, serves_pod_groups

pytestmark = [
    needs_kube_scheduler,
    pytest.mark.skipif(
        not serves_pod_groups(release_for(None, os.environ)),
        reason="PodGroups are v1beta1 from Kubernetes 1.37 on; set BOWLINE_KUBERNETES=1.37",
    ),
]

OF_TEMPLATE = {"name": "dev", "resourceClaimTemplateName": "tpl"}
NAMED = {"name": "dev", "resourceClaimName": "shared"}
FAILED = Status.fatal("failed by the test")


@pytest.fixture
def live(beside_kube_scheduler: tuple[Cluster, Pair]) -> Iterator[LiveCluster]:
    """A control plane with PodGroups, the gate of their claims, and the real kube-scheduler."""
    with own_namespace(*beside_kube_scheduler) as live:
        yield live


@pytest.fixture
async def case(live: LiveCluster) -> AsyncIterator[Case]:
    """The arguments of the plugin's calls."""
    client = KubeClient(load_access(api_server(live.cluster.kubeconfig)))
    async with client:
        yield Case(client, live.namespace)


def make_group(live: LiveCluster, name: str, *entries: dict[str, str]) -> dict[str, Any]:
    """Create a PodGroup that shares these claims; returns its reference as a consumer."""
    live.create(kubernetes_pod_group(name, 2, *entries))
    pod_group = live.cluster.api.get(PODGROUPS.path(live.namespace, name))
    return {"apiGroup": PODGROUPS.group, "resource": "podgroups", "name": name, "uid": pod_group["metadata"]["uid"]}


def make_pod(
    live: LiveCluster, name: str, entry: dict[str, str], group: str, scheduler: str = "example-scheduler"
) -> Any:
    """Create a pod of the group; waits until a claim from a template exists."""
    in_group = {"schedulingGroup": {"podGroupName": group}}
    live.create_pod(name, schedulerName=scheduler, resourceClaims=[entry], **in_group)
    if "resourceClaimName" in entry:
        return live.pod(name)

    def named() -> Any:
        stored_pod = live.pod(name)
        return stored_pod if (stored_pod.get("status") or {}).get("resourceClaimStatuses") else None

    return live.until(f"the claim of pod {name} exists", named)


def claim_name(pod: dict[str, Any]) -> str:
    """The name of the claim that was created for the pod."""
    (status,) = pod["status"]["resourceClaimStatuses"]
    return str(status["resourceClaimName"])


async def test_a_rollback_leaves_the_claim_that_a_pod_of_the_group_has_and_the_end_of_the_group_frees_it(
    live: LiveCluster, case: Case
) -> None:
    live.create(claim("shared"))
    group = make_group(live, "gang", NAMED)
    plugin = await new_plugin(case.client)
    contexts = [
        await case.context(make_pod(live, name, NAMED, "gang"), **claim_decisions("d0")) for name in ("a", "b")
    ]
    for context in contexts:
        assert await plugin.pre_bind(context) == Status.ok()
    target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
    live.cluster.api.post(f"{PODS.path(live.namespace, 'a')}/binding", {"metadata": {"name": "a"}, "target": target})
    assert await plugin.rollback(contexts[1], FAILED) == Status.ok()
    stored_claim = get_claim(live, "shared")
    assert stored_claim["status"]["reservedFor"] == [group]
    assert stored_claim["status"]["allocation"]["devices"]["results"][0]["device"] == "d0"
    for name in ("a", "b"):
        live.cluster.api.request("DELETE", PODS.path(live.namespace, name), {"gracePeriodSeconds": 0})
    live.cluster.api.request("DELETE", PODGROUPS.path(live.namespace, "gang"), {})
    live.until("the claim is free", lambda: is_free(get_claim(live, "shared")) or None)


async def test_a_groups_claim_equals_that_of_kube_scheduler(live: LiveCluster, case: Case) -> None:
    live.create(template("tpl"))
    make_group(live, "theirs", OF_TEMPLATE)
    make_group(live, "ours", OF_TEMPLATE)
    for name in ("their-0", "their-1"):
        make_pod(live, name, OF_TEMPLATE, "theirs", "default-scheduler")
    theirs = get_claim(live, claim_name(bound(live, "their-0")))
    bound(live, "their-1")
    decision = {key: theirs["status"]["allocation"][key] for key in ("devices", "nodeSelector")}
    plugin = await new_plugin(case.client)
    for name in ("our-0", "our-1"):
        pod = make_pod(live, name, OF_TEMPLATE, "ours")
        context = await case.context(pod, resourceClaimAllocations=[{"name": "dev", "allocation": decision}])
        assert await plugin.pre_bind(context) == Status.ok()
    assert comparable(get_claim(live, claim_name(pod))) == comparable(
        get_claim(live, claim_name(live.pod("their-0")))
    )
