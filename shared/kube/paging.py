"""Reads a list page by page, with retries.

If every failed request restarted the list, a long one would hardly ever complete where one request in ten fails. So a
failed page is requested again with the same token. Except the first: its failure loses no progress, and the caller
has its own backoff and error report.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from typing import Any

from shared.kube.errors import InfrastructureError, NoResponse
from shared.runtime.backoff import full_jitter

# About ten seconds; a continue token is valid for five minutes.
_TRIES = 6
_BASE, _CAP = timedelta(milliseconds=200), timedelta(seconds=5)

Page = dict[str, Any]
# Requests the page of a token; "" is the first.
Ask = Callable[[str], Awaitable[Page]]


async def read_pages(ask: Ask) -> AsyncGenerator[Page, None]:
    """Yield page after page. Raises the errors of ``ask``; InfrastructureError of a later page only after
    ``_TRIES``.
    """
    token = ""
    while True:
        page = await (_asked_again(ask, token) if token else ask(token))
        if not isinstance(page.get("metadata"), dict) or not isinstance(page.get("items") or [], list):
            raise NoResponse("the answer is no list; is something between here and the API server?")
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
