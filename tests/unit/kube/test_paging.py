"""Reading a list to its end although some of its pages are delayed."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from bowline.kube.accounting import TimeAccount, accounting
from bowline.kube.errors import ApiStatus, Expired, KubeError, NoResponse, TooManyRequests
from bowline.kube.object_client import PageTurn, read_pages

pytestmark = pytest.mark.looptime

PAGES = {"": ("one", "a"), "a": ("two", "b"), "b": ("three", "")}


BUSY = TooManyRequests("busy", ApiStatus(429, retry_after=timedelta(seconds=30)))
EXPIRED = Expired(ApiStatus(410))


class Server:
    """Replies with the errors of a script for each token, then with the page."""

    def __init__(self, **errors: Sequence[KubeError]) -> None:
        self.errors = {token.removeprefix("at_"): list(some) for token, some in errors.items()}
        self.asked: list[str] = []

    async def ask(self, token: str) -> dict[str, Any]:
        self.asked.append(token)
        script = self.errors.get(token)
        if script:
            raise script.pop(0)
        item, onward = PAGES[token]
        return {"metadata": {"continue": onward} if onward else {}, "items": [item]}

    async def read(self) -> list[str]:
        return [item async for page in read_pages(self.ask, lambda: 0.5) for item in page["items"]]


async def test_only_a_lost_page_is_requested_again() -> None:
    server = Server(at_a=[NoResponse("lost"), NoResponse("lost")], at_b=[NoResponse("lost")])
    assert await server.read() == ["one", "two", "three"]
    assert server.asked == ["", "a", "a", "a", "b", "b"]


@pytest.mark.parametrize(
    ("server", "error", "continue_tokens"),
    [
        pytest.param(Server(at_=[NoResponse("lost")]), NoResponse, [""], id="the first page: the caller retries"),
        pytest.param(Server(at_a=[EXPIRED]), Expired, ["", "a"], id="the API server has forgotten the list"),
        pytest.param(Server(at_a=[NoResponse("lost")] * 9), NoResponse, ["", *["a"] * 6], id="no page follows"),
    ],
)
async def test_what_ends_a_list(server: Server, error: type[KubeError], continue_tokens: list[str]) -> None:
    with pytest.raises(error):
        await server.read()
    assert server.asked == continue_tokens


async def test_a_list_that_waits_for_another_lists_page_spends_no_time_of_its_caller() -> None:
    turn, account = PageTurn(), TimeAccount(asyncio.get_running_loop().time)

    async def take() -> None:
        async with turn.taken():
            return

    async with turn.taken():
        with accounting(account):
            await asyncio.create_task(take())
    assert account.caller_s == pytest.approx(0)
    assert account.api_s == 0
    began = asyncio.get_running_loop().time()
    await take()
    assert asyncio.get_running_loop().time() == began, "the turn was given back"


@pytest.mark.parametrize("page", [{"items": []}, {"metadata": {}, "items": {"a": 1}}])
async def test_what_is_no_list_is_no_answer(page: dict[str, Any]) -> None:
    async def ask(_: str) -> dict[str, Any]:
        return page

    with pytest.raises(NoResponse, match="no list"):
        await anext(read_pages(ask, lambda: 0.5))
