"""From the settings of the client to limiters of writes, in loop time."""

import pytest

from reconciler.app import connections, write_limiters
from shared.framework.config import Client
from shared.kube.calls import WriteClass

pytestmark = pytest.mark.looptime


@pytest.mark.parametrize(("workers", "expected"), [(1, 128), (21, 128), (22, 132), (64, 384)])
async def test_neither_workers_nor_slow_reconciles_wait_for_connections(workers: int, expected: int) -> None:
    assert connections(workers) == expected


async def test_nothing_is_limited_by_default() -> None:
    assert write_limiters(Client()) == {}


@pytest.mark.parametrize(
    ("setting", "kind"),
    [
        pytest.param("bindQPS", WriteClass.BIND, id="Bindings"),
        pytest.param("writeQPS", WriteClass.WRITE, id="writes of preparation"),
        pytest.param("statusQPS", WriteClass.STATUS, id="status and events"),
    ],
)
async def test_a_setting_limits_its_own_kind_of_write_and_no_other(setting: str, kind: WriteClass) -> None:
    limiters = write_limiters(Client.model_validate({setting: 5}))
    assert limiters.keys() == {kind}
    # A second's worth immediately, the rest at the rate.
    assert [await limiters[kind].wait() for _ in range(7)] == pytest.approx([0, 0, 0, 0, 0, 0.2, 0.2])


async def test_a_rate_below_one_a_second_has_no_burst() -> None:
    limiters = write_limiters(Client.model_validate({"writeQPS": 0.5}))
    assert [await limiters[WriteClass.WRITE].wait() for _ in range(3)] == pytest.approx([0, 2, 2])


async def test_kinds_do_not_wait_for_each_other() -> None:
    limiters = write_limiters(Client.model_validate({"bindQPS": 1, "statusQPS": 1}))
    assert await limiters[WriteClass.BIND].wait() == 0
    assert await limiters[WriteClass.BIND].wait() == pytest.approx(1)
    assert await limiters[WriteClass.STATUS].wait() == 0
