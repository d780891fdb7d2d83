"""Releases that somebody's admission policy undoes, and those that wait for another call for the claim."""

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest

from bowline.api.meta import ObjectKey
from bowline.framework.plugin_status import Code, Status
from bowline.kube.accounting import TimeAccount, accounting
from bowline.kube.errors import NotStoredError
from bowline.kube.object_client import ObjectClient
from bowline.kube.resources import Resource
from bowline.kube.stored import require_stored
from bowline.plugins.dynamic_resources.claim_client import MAX_WRITES, ClaimClient
from bowline.plugins.dynamic_resources.tests.builders import allocation, protected_claim, required_claim, user


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
    assert (await released(client)).code is Code.TRANSIENT
    assert client.writes == MAX_WRITES


@pytest.mark.parametrize("consumers", [[user()], [user(), user("other")]])
async def test_an_allocation_or_a_reservation_that_is_put_back_is_named(consumers: list[Any]) -> None:
    client = Unchanged(protected_claim({"allocation": allocation(), "reservedFor": consumers}))
    with pytest.raises(NotStoredError, match=r"status\.(allocation|reservedFor)"):
        await released(client)


class Hanging:
    """A client whose calls never end."""

    async def get(self, *_: Any) -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.looptime
async def test_waiting_for_another_call_for_the_claim_is_no_time_of_the_plugin() -> None:
    claims, account = (
        ClaimClient(cast("ObjectClient", Hanging()), timedelta(0)),
        TimeAccount(asyncio.get_running_loop().time),
    )
    first = asyncio.ensure_future(claims.remove(required_claim(allocation())))
    await asyncio.sleep(0)
    with accounting(account):
        second = asyncio.ensure_future(claims.remove(required_claim(allocation())))
    await asyncio.sleep(30)
    assert [account.caller_s, account.api_s] == pytest.approx([0, 30])
    for task in (first, second):
        task.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
