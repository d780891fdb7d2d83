"""Objects that the tests create, and waiting for a condition."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

T = TypeVar("T")

# Only a test that fails anyway ever waits this long.
LIMIT_S = 60


def pod(name: str, **spec: Any) -> dict[str, Any]:
    """Return a pod that nobody else schedules."""
    containers = [{"name": "main", "image": "example.com/image"}]
    return {"metadata": {"name": name}, "spec": {"schedulerName": "bowline", "containers": containers, **spec}}


def configmap(name: str, **data: str) -> dict[str, Any]:
    """Return a ConfigMap."""
    return {"metadata": {"name": name}, "data": data}


async def until(condition: Callable[[], object]) -> None:
    """Wait until the condition holds; the loop stays free meanwhile."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110 - what is waited for sets no event
            await asyncio.sleep(0.005)


async def until_awaited(look: Callable[[], Awaitable[T]], condition: Callable[[T], object]) -> T:
    """Look again and again until what is seen fulfils the condition; return it."""
    async with asyncio.timeout(LIMIT_S):
        while not condition(seen := await look()):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.02)
    return seen
