"""Releases that somebody's admission policy undoes, and those that wait for another call for the claim."""

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest

from bowline.api.bindrequest import decode_bind_request
from bowline.api.meta import ObjectKey
from bowline.framework.interface.status import Status, Transient
from bowline.kube.accounting import TimeAccount, accounting
from bowline.kube.errors import ApiError, ApiStatus, Forbidden, NotFound, NotStoredError, Unreadable
from bowline.kube.object_client import ObjectClient
from bowline.kube.resources import PODS, Resource
from bowline.kube.stored import require_stored
from bowline.plugins.dynamic_resources.claim_client import MAX_WRITES, ClaimClient
from bowline.plugins.dynamic_resources.reserver import ClaimReserver
from bowline.plugins.dynamic_resources.taint_watch import TaintWatch
from bowline.plugins.dynamic_resources.tests.builders import (
    POD_UID,
    allocation,
    claim,
    pod,
    protected_claim,
    required_claim,
    user,
)
from bowline.testing.builders import bind_request, stored
from bowline.testing.clock import SteppedClock


class Unchanged:
    """A client whose writes succeed and change nothing of the claim."""

    def __init__(self, stored: dict[str, Any]) -> None:
        self.stored = stored
        self.writes = 0

    async def get(self, *_: Any) -> dict[str, Any]:
        return self.stored

    async def patch(self, resource: Resource, *_: Any, essential: dict[str, Any]) -> dict[str, Any]:
        return self._reply(resource, essential)

    async def update(
        self, resource: Resource, *_: Any, subresource: str, essential: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return self._reply(resource, essential)

    def _reply(self, resource: Resource, essential: dict[str, Any] | None) -> dict[str, Any]:
        self.writes += 1
        require_stored(resource, ObjectKey("ns", "one"), essential or {}, self.stored)
        return self.stored


async def released(client: Any) -> Status:
    async def is_group_used(_: bool) -> bool:
        return False

    claims = ClaimClient(client, timedelta(seconds=60))
    return await claims.release(required_claim(allocation()), is_group_used)


async def test_a_finalizer_that_is_put_back_ends_the_attempt() -> None:
    client = Unchanged(protected_claim({}))
    assert isinstance(await released(client), Transient)
    assert client.writes == MAX_WRITES


@pytest.mark.parametrize("consumers", [[user()], [user(), user("other")]])
async def test_an_allocation_or_a_reservation_that_is_put_back_is_named(consumers: list[Any]) -> None:
    client = Unchanged(protected_claim({"allocation": allocation(), "reservedFor": consumers}))
    with pytest.raises(NotStoredError, match=r"status\.(allocation|reservedFor)"):
        await released(client)


class Hanging:
    """A client whose calls end after an hour."""

    clock = SteppedClock()

    async def get(self, *_: Any) -> dict[str, Any]:
        await asyncio.sleep(3600)
        raise NotFound(ApiStatus(404))


@pytest.mark.looptime
async def test_waiting_for_another_call_is_no_time_of_the_plugin() -> None:
    claims = ClaimClient(cast("ObjectClient", Hanging()), timedelta(0))
    account = TimeAccount(asyncio.get_running_loop().time)
    first = asyncio.ensure_future(claims.remove(required_claim(allocation())))
    await asyncio.sleep(0)
    with accounting(account):
        second = asyncio.ensure_future(claims.remove(required_claim(allocation())))
    await asyncio.sleep(30)
    assert [account.caller_s, account.api_s] == pytest.approx([0, 30])
    await asyncio.gather(first, second, return_exceptions=True)


KEPT = Forbidden(ApiStatus(403, message="denied by a policy"))
UNREAD = Unreadable("the claim is not decoded")


@pytest.mark.parametrize("failures", [{"one": KEPT}, {"one": UNREAD, "two": KEPT}, {"one": KEPT, "two": UNREAD}])
async def test_a_claim_that_a_policy_keeps_stops_the_release_of_no_other(failures: dict[str, ApiError]) -> None:
    """And it is the one that is reported: nothing repeats the release of a claim that is not decoded."""
    claims = ("one", "two", "three")
    references = [{"name": name, "resourceClaimName": name} for name in claims]
    decisions = [{"name": name, "allocation": allocation()} for name in claims]
    request = decode_bind_request(
        stored(bind_request(namespace="ns", uid=POD_UID, resourceClaimAllocations=decisions))
    )
    released_claims: list[str] = []

    class Namespace:
        async def get(self, resource: Resource, namespace: str, name: str) -> dict[str, Any]:
            if resource is PODS:
                return pod(resourceClaims=references)
            held = {"allocation": allocation(), "reservedFor": [user()]}
            return protected_claim({} if name in released_claims else held, name=name)

        async def update(self, _: Resource, __: str, name: str, body: Any, **___: Any) -> dict[str, Any]:
            if name in failures:
                raise failures[name]
            released_claims.append(name)
            return protected_claim({}, name=name)

        async def patch(self, _: Resource, __: str, name: str, *___: Any, **____: Any) -> dict[str, Any]:
            return claim({}, name=name)

    reserver = ClaimReserver(cast(Any, Namespace()), timedelta(seconds=60), TaintWatch())
    assert request.spec is not None
    with pytest.raises(Forbidden):
        await reserver.unreserve(request, request.spec)
    assert released_claims == [name for name in claims if name not in failures]
