"""Whose time passes: the caller's, the API server's, or a queue's."""

import asyncio

import pytest

from bowline.kube.accounting import Connections, TimeAccount, accounting, api_time, current_account
from bowline.kube.errors import ConnectionFailed

# The events, second by second: "q" and "Q" enter and leave a queue, "a" and "A" enter and leave the API server.
STEPS = {"q": "enter_queue", "Q": "leave_queue", "a": "enter_api", "A": "leave_api"}


@pytest.mark.parametrize(
    ("steps", "own", "api"),
    [
        pytest.param(["", "", ""], 3, 0, id="no request"),
        pytest.param(["a", "", "A", ""], 2, 2, id="one request"),
        pytest.param(["q", "", "Qa", "A", ""], 2, 1, id="a queue before it is neither's"),
        pytest.param(["a", "a", "A", "A", ""], 2, 3, id="overlapping requests count once"),
        pytest.param(["q", "a", "A", "Q", ""], 2, 1, id="one queues while another is at the API server"),
        pytest.param(["q", "q", "Q", "Q", ""], 2, 0, id="two queue"),
    ],
)
def test_seconds_are_attributed_to_the_caller_or_the_api_server(steps: list[str], own: float, api: float) -> None:
    now = 0.0
    account = TimeAccount(lambda: now)
    for step in steps:
        now += 1
        for name in step:
            getattr(account, STEPS[name])()
    assert (account.caller_s, account.api_s) == (own, api)


@pytest.mark.looptime
async def test_the_account_follows_the_caller_into_its_tasks_and_ends_with_the_block() -> None:
    account = TimeAccount(asyncio.get_running_loop().time)

    async def at_api(seconds: float) -> None:
        with api_time():
            await asyncio.sleep(seconds)

    with accounting(account):
        await asyncio.gather(at_api(2), at_api(3))
        await asyncio.sleep(4)
        assert [account.api_s, account.caller_s] == pytest.approx([3, 4])
    assert current_account() is not account
    await at_api(5)
    assert account.api_s == pytest.approx(3)


@pytest.mark.looptime
async def test_a_request_that_gets_no_connection_in_time_is_not_sent_and_its_wait_is_charged_to_nobody() -> None:
    connections, account = Connections(2, 3), TimeAccount(asyncio.get_running_loop().time)
    for _ in range(2):
        await connections.acquire(account)
    with pytest.raises(ConnectionFailed, match="all 2 connections") as failure:
        await connections.acquire(account)
    assert not failure.value.may_have_been_applied
    assert [account.caller_s, account.api_s] == [0, 0]
    await asyncio.sleep(2)
    assert account.caller_s == pytest.approx(2), "the wait is over: what follows is the caller's time again"
    connections.release()
    await connections.acquire(account)
