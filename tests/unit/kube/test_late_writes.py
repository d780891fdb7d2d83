"""Which writes are noted as possibly applied."""

import asyncio
from datetime import timedelta

import pytest

from bowline.api.meta import ObjectKey
from bowline.kube.calls import Call
from bowline.kube.errors import ApiStatus, ConnectionFailed, Forbidden, KubeError, NoResponse, ServerError
from bowline.kube.resources import PODS
from bowline.kube.writes import LateWrites, Ledger, noting

AT = 10.0


@pytest.mark.parametrize(
    ("error", "is_sent", "is_late"),
    [
        pytest.param(None, True, False, id="it was answered"),
        pytest.param(Forbidden(ApiStatus(403)), True, False, id="it was rejected"),
        pytest.param(ConnectionFailed("refused"), True, False, id="there was no connection"),
        pytest.param(NoResponse("reset"), True, True, id="there was no reply"),
        pytest.param(ServerError("timeout", ApiStatus(504)), True, True, id="a failure inside the API server"),
        pytest.param(asyncio.CancelledError(), True, True, id="its caller was cancelled"),
        pytest.param(asyncio.CancelledError(), False, False, id="its caller was cancelled before it was sent"),
    ],
)
@pytest.mark.parametrize("is_binding", [True, False])
def test_which_writes_may_land_later(
    error: BaseException | None, *, is_sent: bool, is_late: bool, is_binding: bool
) -> None:
    writes, ledger = LateWrites(), Ledger(lambda: AT)
    call = Call("POST", "create", PODS, ObjectKey("default", "train"), "binding" if is_binding else "")
    try:
        with noting(writes), ledger.sending(call) as send:
            assert (bool(writes), writes.last(9.0)) == (True, 9.0), "it is in progress"
            if is_sent and send is not None:
                send()
            if error is not None:
                raise error
    except (KubeError, asyncio.CancelledError):
        pass
    assert (bool(writes), writes.last(99.0)) == (is_late, AT if is_late else None)
    ledger.limit = timedelta(seconds=1)
    assert ledger.is_quiet is not is_late
    writes.lose(AT, is_binding=False)
    assert writes.has_lost_binding is (is_late and is_binding), "also after another one"
