"""Leader election on a real Lease."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from bowline.api.meta import Object, ObjectKey
from bowline.kube.client import KubeClient
from bowline.kube.lease import LeaderElector, LeaseTimings, LeaseVersions
from bowline.kube.resources import LEASES
from bowline.testing.fault_proxy.faults import DropBefore, FaultGate, Hold, Rewrite
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.fault_proxy.server import FaultProxy
from tests.waiting import LIMIT_S, until, until_awaited

# Renewed often, and not lost while the machine is busy.
LASTING = LeaseTimings(timedelta(seconds=120), timedelta(seconds=100), timedelta(seconds=0.3))
# For tests that wait until it expires.
QUICK = LeaseTimings(timedelta(seconds=6), timedelta(seconds=5), timedelta(seconds=0.3))
# Too long to explain a quick change: only the watch can.
SLOW = LeaseTimings(timedelta(hours=3), timedelta(hours=2), timedelta(hours=1))


@asynccontextmanager
async def electing(elector: LeaderElector) -> AsyncIterator[asyncio.Event]:
    """Run the elector until the block ends; yields its stop event."""
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(elector.run(stop))
        yield stop
        stop.set()


def elector(client: KubeClient, namespace: str, name: str, timings: LeaseTimings = LASTING) -> LeaderElector:
    return LeaderElector(client, ObjectKey(namespace, "bowline"), name, timings, LeaseVersions())


async def lease(client: KubeClient, namespace: str) -> Object:
    return await client.get(LEASES, namespace, "bowline")


async def set_(event: asyncio.Event) -> None:
    async with asyncio.timeout(LIMIT_S):
        await event.wait()


async def test_a_review_of_its_own_account_that_hangs_delays_no_leader(
    proxy: FaultProxy, proxy_client: KubeClient, namespace: str
) -> None:
    gate = FaultGate()
    proxy.add(FaultRule(Hold(gate), CallMatch(("create",), "selfsubjectreviews")))
    candidate = elector(proxy_client, namespace, "one")
    async with electing(candidate):
        await until(lambda: gate.wait_reached(0))
        await set_(candidate.is_leader)
        assert "ownerReferences" not in (await lease(proxy_client, namespace))["metadata"]


async def test_a_release_is_noticed_through_the_watch(client: KubeClient, namespace: str) -> None:
    candidate, rival = (elector(client, namespace, name, SLOW) for name in ("one", "two"))
    async with electing(candidate) as stop:
        await set_(candidate.is_leader)
        async with electing(rival):
            await until(lambda: rival.leader == "one")
            assert not rival.is_leader.is_set()
            stop.set()
            await set_(rival.is_leader)
            spec = (await lease(client, namespace))["spec"]
            assert (spec["holderIdentity"], spec["leaseTransitions"]) == ("two", 1)


async def test_restarted_container_leads_before_the_lease_expires(client: KubeClient, namespace: str) -> None:
    """The pod's UID is the only possible reason: the Lease is held for hours."""
    first, again, standby = (elector(client, namespace, name, SLOW) for name in ("p_uid_1", "p_uid_2", "q_other_1"))
    async with asyncio.TaskGroup() as group:
        dying = group.create_task(first.run(asyncio.Event()))
        await set_(first.is_leader)
        async with electing(standby):
            await until(lambda: standby.leader == "p_uid_1")
            dying.cancel()
            await asyncio.wait([dying])
            async with electing(again):
                await set_(again.is_leader)
                await until(lambda: standby.leader == "p_uid_2")
                assert not standby.is_leader.is_set()
                assert (await lease(client, namespace))["spec"]["leaseTransitions"] == 1


async def test_a_leader_that_cannot_renew_stops_before_another_may_start(
    client: KubeClient, proxy: FaultProxy, proxy_client: KubeClient, namespace: str
) -> None:
    candidate, rival = elector(proxy_client, namespace, "one", QUICK), elector(client, namespace, "two", QUICK)
    was_leading = []
    async with electing(candidate):
        await set_(candidate.is_leader)
        async with electing(rival):
            await until(lambda: rival.leader == "one")
            proxy.add(FaultRule(DropBefore()))
            await set_(rival.is_leader)
            was_leading.append(candidate.is_leader.is_set())
            await set_(candidate.lost)
    assert was_leading == [False]


@pytest.mark.parametrize(
    ("patch", "lost"),
    [
        pytest.param({"spec": {"holderIdentity": "usurper"}}, True, id="taken over by force"),
        pytest.param({"metadata": {"labels": {"x": "y"}}}, False, id="only a label added"),
        pytest.param({"spec": {"holderIdentity": ""}}, False, id="holder cleared by another client"),
    ],
)
async def test_a_lease_written_by_another_process_ends_the_leadership(
    client: KubeClient, namespace: str, patch: dict[str, object], lost: bool
) -> None:
    candidate = elector(client, namespace, "one")
    async with electing(candidate):
        await set_(candidate.is_leader)
        version = (await client.patch(LEASES, namespace, "bowline", patch))["metadata"]["resourceVersion"]
        if lost:
            await set_(candidate.lost)
        else:
            now = await until_awaited(
                lambda: lease(client, namespace), lambda seen: seen["metadata"]["resourceVersion"] != version
            )
            assert now["spec"]["holderIdentity"] == "one"
        assert candidate.is_leader.is_set() is not lost


async def test_without_rights_no_process_leads_and_a_stop_is_obeyed(
    unprivileged: KubeClient, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    candidate = elector(unprivileged, namespace, "one")
    async with electing(candidate):
        await until(lambda: "lease not renewed" in caplog.text)
        assert not candidate.is_leader.is_set()


@pytest.mark.parametrize("field", ["holderIdentity", "leaseDurationSeconds"])
async def test_a_lease_that_is_stored_otherwise_makes_no_leader(
    proxy: FaultProxy, proxy_client: KubeClient, namespace: str, field: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Each candidate would find it free."""
    candidate, rival = elector(proxy_client, namespace, "one"), elector(proxy_client, namespace, "two")
    async with electing(candidate):
        await set_(candidate.is_leader)
        proxy.add(FaultRule(Rewrite.without(("spec", field)), CallMatch(("create", "update"), "leases")))
        await set_(candidate.lost)
        assert candidate.left_s == 0
        caplog.clear()
        async with electing(rival):
            await until(lambda: "lease not renewed" in caplog.text)
            assert not rival.is_leader.is_set()
            proxy.clear()
            await set_(rival.is_leader)
