"""A process without contact to the API server becomes unready, and exits after minutes."""

import asyncio
from collections.abc import Callable

import pytest

from bowline_reconciler.process import CHECK_S, EXIT_S, UNREADY_S, Contact, ContactLost

pytestmark = pytest.mark.looptime


class Answers:
    """The number of the API server's replies; there are none in an interval."""

    def __init__(self, silent_from: float, silent_until: float = float("inf")) -> None:
        self._silent = (silent_from, silent_until)
        self._count = 0

    def __call__(self) -> int:
        begin, end = self._silent
        self._count += not begin <= asyncio.get_running_loop().time() < end
        return self._count


def contact(answers: Callable[[], int], problem: str | None = "connection refused") -> Contact:
    return Contact(answers, lambda: problem)


async def test_a_process_with_contact_runs_and_is_ready() -> None:
    api_contact = contact(Answers(float("inf")))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10 * EXIT_S):
            await api_contact.run()
    assert api_contact.missing() is None


async def test_lost_contact_is_unready_at_first_and_then_ends_the_process(caplog: pytest.LogCaptureFixture) -> None:
    api_contact = contact(Answers(silent_from=1000))
    running = asyncio.create_task(api_contact.run())
    await asyncio.sleep(1000 + UNREADY_S - CHECK_S)
    assert api_contact.missing() is None
    await asyncio.sleep(2 * CHECK_S)
    assert "connection refused" in (api_contact.missing() or "")
    with pytest.raises(ContactLost, match="has not answered for 300 s"):
        await running
    assert asyncio.get_running_loop().time() == pytest.approx(1000 + EXIT_S, abs=CHECK_S)
    assert [record.levelname for record in caplog.records].count("ERROR") == 1
