"""Several reconcilers in one cluster: equal, overlapping and missing shards."""

from datetime import timedelta

from bowline.api import names
from bowline.framework.binding.context import BindContext
from bowline.framework.plugin_status import Status
from bowline.kube.lease import LeaseTimings
from bowline.kube.resources import BINDREQUESTS, LEASES
from bowline_reconciler.options import parse_options
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
    found = {item["metadata"]["name"]: item for item in await stage.client.list_all(LEASES, stage.namespace)}
    held = found.get(lease)
    if held is None or not held["spec"].get("holderIdentity"):
        return None
    return str(held["metadata"]["annotations"][names.SHARD_SELECTOR])


async def test_an_overlapping_shard_waits_until_the_other_has_ended(stage: Stage) -> None:
    one, two = Scripted(), Scripted()
    narrow, wide = shard(stage, "a"), f"{POOL} in ({stage.namespace}-a,{stage.namespace}-b)"
    async with stage.working(one, shard=narrow, lease="one-x", registry=stage.namespace, timings=TIMINGS) as first:
        await until_awaited(lambda: annotation(stage, "one-x"), lambda seen: seen == narrow)
        async with stage.working(two, shard=wide, lease="two-x", registry=stage.namespace, timings=TIMINGS) as second:
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
    assert (one.points("b"), two.points("a")) == ([], [])


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

    one, two = Scripted(effects=True), Scripted(effects=True, pre_bind=prepares)
    async with (
        stage.working(one, shard=shard(stage, "a"), lease="one-x", registry=stage.namespace),
        stage.working(two, shard=shard(stage, "b"), lease="two-x", registry=stage.namespace) as second,
    ):
        await stage.create_pod("moves")
        await stage.request_bind("moves", metadata=labels(stage, "b"))
        await there.reached.wait()
        await stage.client.patch(BINDREQUESTS, stage.namespace, "moves", {"metadata": labels(stage, "a")})
        await stage.phase("moves", "Succeeded")
        await until(lambda: not any(second.sizes.values()))
    assert there.cancelled
    assert two.points("moves") == ["pre_bind"], "no rollback of what the other has prepared"
    assert one.points("moves") == ["pre_bind", "post_bind"]


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
    written = ("pool=a,tier=gpu", "tier=gpu,pool=a", "pool in (a),tier=gpu", "tier==gpu, pool=a")
    options = [parse_options(["--shard-label-selector", text], {}) for text in written]
    assert {(given.lease_name, given.shard) for given in options} == {(options[0].lease_name, "pool=a,tier=gpu")}
