"""Several reconcilers in one cluster: equal, overlapping and missing shards."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from bowline.api import names
from bowline.api.meta import ObjectKey
from bowline.framework.binding.context import BindContext
from bowline.framework.plugin_status import Status
from bowline.kube.lease import LeaseTimings
from bowline.kube.resources import BINDREQUESTS, LEASES, NAMESPACES, SUBJECT_ACCESS_REVIEWS, Resource
from bowline_reconciler.options import parse_options
from bowline_reconciler.shards import MAX_DURATION_S, MAX_SELECTOR, access_review, held_shard
from tests.reconciler.conftest import SERVICEACCOUNTS
from tests.reconciler.stage import Hold, Scripted, Stage
from tests.waiting import until, until_awaited

TIMINGS = LeaseTimings(timedelta(seconds=12), timedelta(seconds=8), timedelta(seconds=1))
POOL = "example.com/pool"


def shard(stage: Stage, pool: str) -> str:
    """Return a label value that no other test's shard has: the registry is cluster-wide."""
    return f"{POOL}={stage.namespace}-{pool}"


def labels(stage: Stage, pool: str) -> dict[str, dict[str, str]]:
    return {"labels": {POOL: f"{stage.namespace}-{pool}"}}


async def annotation(stage: Stage, lease: str) -> str | None:
    """Return the selector in a held Lease."""
    leases = {item["metadata"]["name"]: item for item in await stage.client.list_all(LEASES, stage.namespace)}
    held = leases.get(lease)
    if held is None or not held["spec"].get("holderIdentity"):
        return None
    return str(held["metadata"]["annotations"][names.SHARD_SELECTOR])


async def test_an_overlapping_shard_waits_until_the_other_has_ended(stage: Stage) -> None:
    first_plugin, second_plugin = Scripted(), Scripted()
    narrow, wide = shard(stage, "a"), f"{POOL} in ({stage.namespace}-a,{stage.namespace}-b)"
    async with stage.working(
        first_plugin, shard=narrow, lease="one-x", registry=stage.namespace, timings=TIMINGS
    ) as first:
        await until_awaited(lambda: annotation(stage, "one-x"), lambda seen: seen == narrow)
        async with stage.working(
            second_plugin, shard=wide, lease="two-x", registry=stage.namespace, timings=TIMINGS
        ) as second:
            shards = second.parts.shards
            await until(lambda: shards.conflict)
            assert f"{stage.namespace}/one-x serves {narrow!r}" in (shards.conflict or "")
            await stage.create_pod("a")
            await stage.request_bind("a", metadata=labels(stage, "a"))
            await stage.phase("a", "Succeeded")
            assert await annotation(stage, "two-x") is None
            await first.leave()
            await stage.create_pod("b")
            await stage.request_bind("b", metadata=labels(stage, "b"))
            await stage.phase("b", "Succeeded")
            assert shards.conflict is None
    assert (first_plugin.points("b"), second_plugin.points("a")) == ([], [])


async def test_another_selector_of_the_same_release_waits_and_is_ready(stage: Stage) -> None:
    """An upgrade that changes the selector must not wait for itself."""
    old, new = shard(stage, "a"), f"{POOL} in ({stage.namespace}-a,{stage.namespace}-b)"
    async with stage.working(Scripted(), shard=old, lease="same-11111111", registry=stage.namespace):
        await until_awaited(lambda: annotation(stage, "same-11111111"), bool)
        async with stage.working(Scripted(), shard=new, lease="same-22222222", registry=stage.namespace) as second:
            await until(lambda: second.parts.shards.waiting)
            assert second.parts.shards.conflict is None
            assert await annotation(stage, "same-22222222") is None


async def test_a_request_that_changes_its_shard_keeps_what_was_prepared(stage: Stage) -> None:
    there = Hold()

    async def prepares(ctx: BindContext) -> Status:
        return Status.ok() if ctx.request.key.name != "moves" else await there(ctx)

    first_plugin, second_plugin = Scripted(effects=True), Scripted(effects=True, pre_bind=prepares)
    async with (
        stage.working(first_plugin, shard=shard(stage, "a"), lease="one-x", registry=stage.namespace),
        stage.working(second_plugin, shard=shard(stage, "b"), lease="two-x", registry=stage.namespace) as second,
    ):
        await stage.create_pod("moves")
        await stage.request_bind("moves", metadata=labels(stage, "b"))
        await there.reached.wait()
        await stage.client.patch(BINDREQUESTS, stage.namespace, "moves", {"metadata": labels(stage, "a")})
        await stage.phase("moves", "Succeeded")
        await until(lambda: not any(second.sizes.values()))
    assert there.cancelled
    assert second_plugin.points("moves") == ["pre_bind"], "no rollback of what the other has prepared"
    assert first_plugin.points("moves") == ["pre_bind", "post_bind"]


async def test_a_request_outside_every_shard_is_counted_and_reported_and_can_be_deleted(stage: Stage) -> None:
    """The webhook has set its finalizer at creation, without knowledge of shards."""
    plugin = Scripted(effects=True)
    await stage.create_pod()
    metadata = {**labels(stage, "unclaimed"), "finalizers": [names.FINALIZER]}
    await stage.request_bind(metadata=metadata)
    await stage.withdraw()
    assert (await stage.request())["metadata"]["deletionTimestamp"]
    async with stage.working(plugin, shard=shard(stage, "a"), lease="one-x", registry=stage.namespace) as working:
        await stage.request_deleted()
        assert working.parts.observation.metrics.outside_shards._value.get() >= 1
        await until_awaited(stage.events_of_request, lambda reasons: reasons == ["NotServed"])
    assert plugin.points("pod") == ["rollback"]


def test_equal_selectors_have_one_lease() -> None:
    selectors = ("pool=a,tier=gpu", "tier=gpu,pool=a", "pool in (a),tier=gpu", "tier==gpu, pool=a")
    options = [parse_options(["--shard-label-selector", text], {}) for text in selectors]
    assert {(shard_options.lease_name, shard_options.shard) for shard_options in options} == {
        (options[0].lease_name, "pool=a,tier=gpu")
    }


CLUSTERROLES, BINDINGS = (
    Resource("rbac.authorization.k8s.io", "v1", f"{kind.lower()}s", kind, namespaced=False)
    for kind in ("ClusterRole", "ClusterRoleBinding")
)
RECONCILER = {"apiGroups": [names.GROUP], "resources": ["bindrequests/status"], "verbs": ["patch"]}


async def is_reconciler(stage: Stage, namespace: str, account: str) -> bool:
    """Whether the API server, which watches roles and bindings, allows the account what a reconciler may do."""
    review = await stage.client.create(SUBJECT_ACCESS_REVIEWS, "", access_review(namespace, account))
    return bool(review["status"]["allowed"])


@asynccontextmanager
async def lease_elsewhere(
    stage: Stage, selector: str, *, account: str = "", rules: Any = (), **spec: Any
) -> AsyncIterator[str]:
    """A held Lease of all requests in another namespace, owned by an account with these rights in the cluster."""
    namespace = f"a-{stage.namespace}"
    await stage.client.create(NAMESPACES, "", {"metadata": {"name": namespace}})
    owners = []
    if account:
        made = await stage.client.create(SERVICEACCOUNTS, namespace, {"metadata": {"name": account}})
        owners = [{"apiVersion": "v1", "kind": "ServiceAccount", "name": account, "uid": made["metadata"]["uid"]}]
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": namespace}
        subject = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
        await stage.client.create(CLUSTERROLES, "", {"metadata": {"name": namespace}, "rules": [*rules]})
        binding = {"metadata": {"name": namespace}, "roleRef": reference, "subjects": [subject]}
        await stage.client.create(BINDINGS, "", binding)
        if RECONCILER in rules:
            await until_awaited(partial(is_reconciler, stage, namespace, account), bool)
    metadata = {
        "name": "reconciler",
        "labels": {names.SHARD_LABEL: stage.namespace},
        "annotations": {names.SHARD_SELECTOR: selector},
        "ownerReferences": owners,
    }
    held = {
        "holderIdentity": "nobody",
        "acquireTime": "1970-01-01T00:00:00.000000Z",
        "leaseDurationSeconds": 2**31 - 1,
    }
    await stage.client.create(LEASES, namespace, {"metadata": metadata, "spec": {**held, **spec}})
    try:
        yield namespace
    finally:
        await stage.client.delete(LEASES, namespace, "reconciler")


@pytest.mark.parametrize(
    ("account", "rules"),
    [
        pytest.param("", (), id="without an owner"),
        pytest.param("tenant", (), id="of an account without rights"),
        pytest.param("bowline-reconciler", (), id="of an account of the reconciler's name"),
        pytest.param("reader", ({**RECONCILER, "verbs": ["get"]},), id="of an account that reads requests"),
    ],
)
@pytest.mark.parametrize("selector", ["", POOL, ",".join(f"k{number}!=x" for number in range(20_000))])
async def test_a_lease_of_another_account_stops_no_reconciler(
    stage: Stage, account: str, rules: Any, selector: str
) -> None:
    async with (
        lease_elsewhere(stage, selector, account=account, rules=rules),
        stage.working(Scripted(), shard=shard(stage, "a"), lease="one-x", registry=stage.namespace) as working,
    ):
        await stage.create_pod()
        await stage.request_bind(metadata=labels(stage, "a"))
        await stage.phase("pod", "Succeeded")
        assert working.parts.shards.conflict is None
        assert not await working.parts.shards.is_outranked(ObjectKey(stage.namespace, "one-x"))


async def test_a_lease_of_another_account_keeps_no_deleted_request(stage: Stage) -> None:
    """The first Lease adopts requests outside every shard; a stranger's precedes no other."""
    await stage.create_pod()
    metadata = {**labels(stage, "unclaimed"), "finalizers": [names.FINALIZER]}
    await stage.request_bind(metadata=metadata)
    await stage.withdraw()
    async with (
        lease_elsewhere(stage, shard(stage, "unclaimed"), account="tenant"),
        stage.working(Scripted(), shard=shard(stage, "a"), lease="one-x", registry=stage.namespace),
    ):
        await stage.request_deleted()


async def test_a_reconciler_of_another_namespace_is_known_by_its_rights(stage: Stage) -> None:
    async with (
        lease_elsewhere(stage, "", account="other", rules=(RECONCILER,)) as namespace,
        stage.working(Scripted(), lease="one", registry=stage.namespace) as working,
    ):
        await until(lambda: working.parts.shards.conflict)
        assert f"{namespace}/reconciler serves 'all requests'" in (working.parts.shards.conflict or "")
        assert await annotation(stage, "one") is None


@pytest.mark.parametrize(
    ("selector", "counts"),
    [
        pytest.param("a" * MAX_SELECTOR, False, id="no valid key"),
        pytest.param(",".join(f"k{number}" for number in range(1000)), False, id="longer than the bound"),
        pytest.param(",".join(f"k{number}" for number in range(500)), True, id="within the bound"),
    ],
)
def test_the_work_for_a_lease_is_bounded(selector: str, counts: bool) -> None:
    metadata = {"name": "x", "namespace": "x", "annotations": {names.SHARD_SELECTOR: selector}}
    held = held_shard({"metadata": metadata, "spec": {"holderIdentity": "x", "leaseDurationSeconds": 2**31 - 1}})
    assert (held is not None) is counts
    assert held is None or held.duration_s == MAX_DURATION_S
