"""The delays after failures."""

from datetime import timedelta

import pytest

from bowline.runtime.backoff import ItemBackoff, full_jitter


def seconds(value: float) -> timedelta:
    return timedelta(seconds=value)


@pytest.mark.parametrize(
    ("attempt", "random", "expectation"),
    [
        pytest.param(2, 0.5, 1.0, id="the second doubles the bound"),
        pytest.param(7, 0.5, 30.0, id="the cap holds"),
        pytest.param(10**6, 0.5, 30.0, id="any number of failures is no overflow"),
    ],
)
def test_full_jitter(attempt: int, random: float, expectation: float) -> None:
    assert full_jitter(attempt, seconds(1), seconds(60), random) == seconds(expectation)


def backoff() -> ItemBackoff[str]:
    return ItemBackoff(seconds(1), seconds(60), random=lambda: 0.5)


def test_failures_in_a_row_count_by_key_and_a_success_forgets_them() -> None:
    counted = backoff()
    assert [counted.next_delay("a"), counted.next_delay("a"), counted.next_delay("b")] == [
        seconds(0.5),
        seconds(1),
        seconds(0.5),
    ]
    counted.reset("a")
    assert counted.count("a") == 0
    assert counted.next_delay("a") == seconds(0.5)
    assert counted.next_delay("b") == seconds(1)


@pytest.mark.parametrize(
    ("retry_after", "expectation"),
    [
        pytest.param(30.0, 30.5, id="the requested time plus jitter"),
        pytest.param(0.2, 0.4, id="at most twice what was asked for"),
    ],
)
def test_a_retry_is_never_sooner_than_retry_after(retry_after: float, expectation: float) -> None:
    assert backoff().next_delay("a", at_least=seconds(retry_after)) == seconds(expectation)


def test_every_failing_key_backs_off_however_many_there_are() -> None:
    counted: ItemBackoff[int] = ItemBackoff(seconds(1), seconds(60), random=lambda: 0.5)
    rounds = [{counted.next_delay(key) for key in range(20_001)} for _ in range(4)]
    assert rounds == [{seconds(0.5)}, {seconds(1)}, {seconds(2)}, {seconds(4)}]
    for key in range(20_001):
        counted.reset(key)
    assert len(counted) == 0
