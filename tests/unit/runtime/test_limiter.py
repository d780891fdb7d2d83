"""The rate limit, in loop time."""

import asyncio

import pytest

from bowline.runtime.limiter import Limiter

pytestmark = pytest.mark.looptime


async def test_slots_are_evenly_spaced_in_the_order_of_the_calls() -> None:
    limiter = Limiter(qps=10)
    assert [limiter.reserve() for _ in range(4)] == pytest.approx([0, 0.1, 0.2, 0.3])


async def test_unused_slots_are_not_saved() -> None:
    limiter = Limiter(qps=10)
    await asyncio.sleep(100)
    assert [limiter.reserve() for _ in range(2)] == pytest.approx([0, 0.1])


@pytest.mark.parametrize("qps", [pytest.param(0, id="zero"), pytest.param(-1, id="negative")])
async def test_invalid_rates_are_rejected(qps: float) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        Limiter(qps)
