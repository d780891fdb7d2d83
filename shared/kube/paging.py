"""A list read page by page, to its end.

A list of many pages would hardly ever be complete where one request in ten fails, were it begun anew each time. So a
page that does not come is asked for again, by the same token. Not the first: nothing is lost by its failure, and
whoever reads has a backoff of its own and words for what is wrong.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any

from shared.kube.errors import InfrastructureError, LostReply
from shared.runtime.backoff import full_jitter

# About ten seconds; the API server remembers where a list was for five minutes.
_TRIES = 6
_BASE, _CAP = timedelta(milliseconds=200), timedelta(seconds=5)

Page = dict[str, Any]
# Asks for the page that a token stands for; "" is the first.
Ask = Callable[[str], Awaitable[Page]]


async def read_pages(ask: Ask) -> AsyncGenerator[Page, None]:
    """Yield page after page. Raises what ``ask`` raises, for trouble that may pass only after some tries."""
    token = ""
    while True:
        page = await (_asked_again(ask, token) if token else ask(token))
        if not isinstance(page.get("metadata"), dict) or not isinstance(page.get("items") or [], list):
            raise LostReply("the answer is no list; is something between here and the API server?")
        yield page
        token = page["metadata"].get("continue", "")
        if not token:
            return


async def _asked_again(ask: Ask, token: str) -> Page:
    for tried in range(1, _TRIES):
        try:
            return await ask(token)
        except InfrastructureError as error:
            pause = full_jitter(tried, _BASE, _CAP, random.random())  # noqa: S311 - spreads load, guards nothing
            wait = max(pause, error.retry_after or pause)
        await asyncio.sleep(wait.total_seconds())
    return await ask(token)
