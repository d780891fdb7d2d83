"""A write that is accepted and not stored is a failure; otherwise it would be repeated in a loop."""

from typing import Any

import pytest

from bowline.api import names
from bowline.api.meta import ObjectUID, key_of
from bowline.kube.client import KubeClient
from bowline.kube.errors import NotStoredError
from bowline.kube.object_client import Body
from bowline.kube.stored import require_stored
from bowline.testing.builders import bind_request, stored
from bowline.testing.clock import SteppedClock
from bowline_reconciler.binding.writer import Writer
from tests.builders import request


class Storing(KubeClient):
    """Stores each patch of metadata, except the field that a webhook removes."""

    def __init__(self, removed: str = "") -> None:
        self.clock = SteppedClock()
        self.removed = removed

    async def patch(self, *args: Any, essential: Body | None = None, **options: Any) -> dict[str, Any]:
        resource, _, _, body = args
        metadata = {key: value for key, value in body["metadata"].items() if key != self.removed}
        reply = stored(bind_request(), version="2") | {"metadata": stored(bind_request())["metadata"] | metadata}
        require_stored(resource, key_of(reply), essential or {}, reply)
        return reply


def writer(client: KubeClient) -> Writer:
    return Writer(client, lambda note: None, lambda after: None)


async def test_the_stored_request_is_returned() -> None:
    assert (await writer(Storing()).set_owner(request(), ObjectUID("pod-uid"))).pod_uid == "pod-uid"
    assert (await writer(Storing()).add_finalizer(request(), ["a"])).finalizers == (names.FINALIZER,)


@pytest.mark.parametrize("removed", ["finalizers", "annotations"])
async def test_a_finalizer_that_a_webhook_removes_is_a_failure(removed: str) -> None:
    with pytest.raises(NotStoredError, match=rf"metadata\.{removed}"):
        await writer(Storing(removed)).add_finalizer(request(), ["a"])
