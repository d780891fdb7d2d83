"""The token bucket, in loop time."""

import asyncio

import pytest

from shared.runtime.limiter import Limiter

pytestmark = pytest.mark.looptime


def now() -> float:
    return round(asyncio.get_running_loop().time(), 3)


async def test_no_limit_never_waits() -> None:
    limiter = Limiter(0)
    assert [await limiter.wait() for _ in range(100)] == [0.0] * 100


async def test_a_burst_passes_immediately_and_the_rest_at_the_rate() -> None:
    limiter = Limiter(qps=10, burst=3)
    passed = []
    for _ in range(5):
        await limiter.wait()
        passed.append(now())
    assert passed == [0, 0, 0, 0.1, 0.2]


async def test_saved_tokens_never_exceed_the_burst() -> None:
    limiter = Limiter(qps=10, burst=2)
    await asyncio.sleep(100)
    assert [await limiter.wait() for _ in range(3)] == pytest.approx([0, 0, 0.1])


async def test_callers_are_served_in_order() -> None:
    limiter = Limiter(qps=1)
    served: list[int] = []

    async def caller(number: int) -> None:
        await limiter.wait()
        served.append(number)

    await asyncio.gather(*(caller(number) for number in range(4)))
    assert (served, now()) == ([0, 1, 2, 3], 3)


async def test_a_cancelled_caller_releases_its_place() -> None:
    limiter = Limiter(qps=1)
    await limiter.wait()
    leaving = asyncio.create_task(limiter.wait())
    await asyncio.sleep(0.5)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    await limiter.wait()
    assert now() == 1


@pytest.mark.parametrize(
    ("qps", "burst"), [pytest.param(-1, 1, id="negative rate"), pytest.param(1, 0, id="no burst at all")]
)
async def test_invalid_limits_are_rejected(qps: float, burst: int) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        Limiter(qps, burst)
