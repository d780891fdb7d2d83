"""How often a Binding is sent in one call, and the result. In loop time."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from bowline.api.meta import ObjectKey, ObjectUID
from bowline.kube.binding import BindingResult, BindOutcome, post_binding
from bowline.kube.client import KubeClient
from bowline.kube.errors import ApiStatus, ConnectionFailed, InfrastructureError, KubeError, NoResponse, from_status
from bowline.testing.clock import SteppedClock

pytestmark = pytest.mark.looptime

LOST = NoResponse("reset")
TIMEOUT = from_status(ApiStatus(504, "Timeout", "etcd"))
STOPPING_SERVER = from_status(ApiStatus(503, "ServiceUnavailable", "shutting down", retry_after=timedelta(seconds=1)))
MAINTENANCE = from_status(ApiStatus(503, "ServiceUnavailable", "away", retry_after=timedelta(seconds=30)))
OVERLOADED = from_status(ApiStatus(429, "TooManyRequests", "busy", retry_after=timedelta(seconds=7)))
WEBHOOK_DOWN = from_status(ApiStatus(500, "InternalError", 'failed calling webhook "guard.example.com": refused'))
BOUND_ALREADY = from_status(ApiStatus(409, "Conflict", "bound"))


class Replies(KubeClient):
    """Ends each create as the test states, and records when each was sent. After that it binds."""

    def __init__(self, *replies: KubeError) -> None:
        self.clock = SteppedClock()
        self.random = Random(0)  # noqa: S311 - jitter
        self.replies = list(replies)
        self.sent: list[float] = []

    async def create(self, *args: Any, **options: Any) -> dict[str, Any]:
        self.sent.append(asyncio.get_running_loop().time())
        if self.replies:
            raise self.replies.pop(0)
        return {}


async def post(client: KubeClient, stopping: asyncio.Event | None = None) -> BindingResult:
    return await post_binding(client, ObjectKey("default", "a"), ObjectUID("uid"), "n1", {}, stopping=stopping)


@pytest.mark.parametrize(
    ("replies", "posts", "outcome", "retry_after"),
    [
        pytest.param([], 1, BindOutcome.BOUND, None, id="acknowledged"),
        pytest.param([LOST], 2, BindOutcome.BOUND, None, id="a lost reply is followed by one more POST"),
        pytest.param([LOST, BOUND_ALREADY], 2, BindOutcome.CONFLICT, None, id="the first was applied"),
        pytest.param([LOST, LOST], 2, BindOutcome.UNKNOWN, None, id="no third POST"),
        pytest.param([TIMEOUT, TIMEOUT], 2, BindOutcome.UNKNOWN, None, id="no third POST after timeouts"),
        pytest.param([LOST, ConnectionFailed("refused")], 2, BindOutcome.UNKNOWN, None, id="the second is not sent"),
        pytest.param([LOST, WEBHOOK_DOWN], 2, BindOutcome.UNKNOWN, None, id="the second meets a webhook"),
        pytest.param([LOST, OVERLOADED], 2, BindOutcome.UNKNOWN, 7, id="the second is rejected"),
        pytest.param([STOPPING_SERVER, STOPPING_SERVER], 2, BindOutcome.UNKNOWN, 1, id="a short Retry-After"),
        pytest.param([MAINTENANCE], 1, BindOutcome.UNKNOWN, 30, id="a long one is not waited for in here"),
    ],
)
async def test_a_binding_is_sent_at_most_twice(
    replies: Sequence[KubeError], posts: int, outcome: BindOutcome, retry_after: int | None
) -> None:
    client = Replies(*replies)
    result = await post(client)
    assert (len(client.sent), result.outcome) == (posts, outcome)
    assert result.retry_after == (timedelta(seconds=retry_after) if retry_after is not None else None)


async def test_the_second_post_waits_for_the_retry_after_of_a_5xx() -> None:
    client = Replies(STOPPING_SERVER)
    assert (await post(client)).outcome is BindOutcome.BOUND
    first, second = client.sent
    assert second - first >= 1


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(ConnectionFailed("refused"), id="no connection"),
        pytest.param(OVERLOADED, id="rejected"),
        pytest.param(WEBHOOK_DOWN, id="a webhook that cannot be called"),
    ],
)
async def test_a_post_that_cannot_have_been_applied_is_not_repeated(reply: InfrastructureError) -> None:
    client = Replies(reply)
    with pytest.raises(type(reply)):
        await post(client)
    assert len(client.sent) == 1


async def test_a_slow_failure_is_not_repeated() -> None:
    class Slow(Replies):
        async def create(self, *args: Any, **options: Any) -> dict[str, Any]:
            await asyncio.sleep(20)
            return await super().create(*args, **options)

    client = Slow(LOST)
    assert (await post(client)).outcome is BindOutcome.UNKNOWN
    assert len(client.sent) == 1


async def test_a_second_post_that_is_stopped_in_the_clients_queue_is_not_sent() -> None:
    stopping = asyncio.Event()

    class Queued(Replies):
        async def create(self, *args: Any, **options: Any) -> dict[str, Any]:
            await asyncio.sleep(3)
            options["on_send"]()
            return await super().create(*args, **options)

    client = Queued(LOST)
    posting = asyncio.create_task(post(client, stopping))
    await asyncio.sleep(5)
    stopping.set()
    result = await posting
    assert (len(client.sent), result.outcome) == (1, BindOutcome.UNKNOWN)
