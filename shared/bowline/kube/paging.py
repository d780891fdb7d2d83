"""A list that is read page by page, as an API server offers it; how a page is requested is the caller's."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from bowline.kube.accounting import current_account
from bowline.kube.errors import InfrastructureError, NoResponse
from bowline.runtime.backoff import full_jitter

# About ten seconds; a continue token is valid for five minutes.
_PAGE_TRIES = 6
_PAGE_BASE, _PAGE_CAP = timedelta(milliseconds=200), timedelta(seconds=5)

# Pages are read one after another, so that one page is in memory; a hanging one delays the others by this much.
_PAGE_TURN_S = 5.0

Page = dict[str, Any]
# Requests the page of a token; "" is the first.
Ask = Callable[[str], Awaitable[Page]]


class PageTurn:
    """The turn of one list among those of a client."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def taken(self) -> AsyncGenerator[None]:
        """Wait for the pages that other lists are reading, up to ``_PAGE_TURN_S``: no time of the caller's.

        The consumer of a page processes it before the next turn begins, if it does not suspend.
        """
        has_turn, account = False, current_account()
        account.enter_queue()
        try:
            async with asyncio.timeout(_PAGE_TURN_S):
                has_turn = await self._lock.acquire()
        except TimeoutError:
            pass
        finally:
            account.leave_queue()
        try:
            yield
        finally:
            if has_turn:
                self._lock.release()


async def read_pages(ask: Ask, jitter: Callable[[], float]) -> AsyncGenerator[Page, None]:
    """Yield page after page. Raises the errors of ``ask``; InfrastructureError of a later page only after
    ``_PAGE_TRIES``. ``jitter`` returns a random number in [0, 1).

    If every failed request restarted the list, a long one would hardly ever complete where one request in ten fails.
    So a failed page is requested again with the same token. Except the first: its failure loses no progress, and the
    caller has its own backoff and error report.
    """
    token = ""
    while True:
        page = await (_page_with_retries(ask, token, jitter) if token else ask(token))
        if not isinstance(page.get("metadata"), dict) or not isinstance(page.get("items") or [], list):
            raise NoResponse("the answer is no list; is something between here and the API server?")
        yield page
        if page.get("items"):
            page["items"].clear()
        token = page["metadata"].get("continue", "")
        if not token:
            return


async def _page_with_retries(ask: Ask, token: str, jitter: Callable[[], float]) -> Page:
    for attempt in range(1, _PAGE_TRIES):
        try:
            return await ask(token)
        except InfrastructureError as error:
            pause = full_jitter(attempt, _PAGE_BASE, _PAGE_CAP, jitter())
            wait = max(pause, error.retry_after or pause)
        await asyncio.sleep(wait.total_seconds())
    return await ask(token)
