"""Which writes are noted as possibly applied, and what proves that one cannot land any more."""

import asyncio

import pytest

from bowline.api.meta import ObjectKey
from bowline.kube.errors import ApiStatus, ConnectionFailed, Forbidden, KubeError, NoResponse, ServerError
from bowline.kube.resources import CONFIGMAPS, PODS
from bowline.kube.writes import LateWrites, SentWrite, WrittenObject, sent_write

KEY = ObjectKey("ns", "pod")
POD, CONFIGMAP = WrittenObject(PODS, KEY), WrittenObject(CONFIGMAPS, KEY)
AT = 10.0
AT_VERSION = {"metadata": {"resourceVersion": "7"}}


def end(writes: LateWrites, write: SentWrite, error: BaseException | None, *, is_sent: bool = True) -> None:
    """Send the write, which ends with that error."""
    try:
        with writes.sending(write, lambda: AT):
            if is_sent:
                write.send()
            if error is not None:
                raise error
    except (KubeError, asyncio.CancelledError):
        pass


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
def test_which_writes_may_land_later(error: BaseException | None, *, is_sent: bool, is_late: bool) -> None:
    writes = LateWrites()
    end(writes, sent_write(CONFIGMAP, "", {}), error, is_sent=is_sent)
    assert writes.last(99.0, bindings=False) == (AT if is_late else None)
    assert writes.last(99.0, bindings=True) is None


@pytest.mark.parametrize(
    ("body", "version", "is_late"),
    [
        pytest.param(AT_VERSION, "8", False, id="the object has another version"),
        pytest.param(AT_VERSION, "", False, id="the object does not exist"),
        pytest.param(AT_VERSION, "7", True, id="the object has the version that the write requires"),
        pytest.param({"preconditions": {"resourceVersion": "7"}}, "8", False, id="a delete of another version"),
        pytest.param({"metadata": {"uid": "u"}}, "8", True, id="a write that requires no version"),
        pytest.param([{"op": "remove", "path": "/metadata/labels/a"}], "8", True, id="a JSON patch"),
    ],
)
def test_what_a_read_proves(body: object, version: str, *, is_late: bool) -> None:
    writes, write = LateWrites(), sent_write(POD, "", body)  # type: ignore[arg-type]  # of the table
    end(writes, write, NoResponse("reset"))
    writes.observe(sent_write(CONFIGMAP, "", {}).target, "9")
    assert len(writes) == 1, "another object proves nothing"
    writes.observe(write.target, version)
    assert (len(writes) == 1) is is_late
    assert list(writes.guarded_objects()) == ([write.target] if is_late and write.guard else [])
