"""Which reviews of a BindRequest make the webhook read the pod's failure."""

from datetime import timedelta
from typing import Any, cast

import pytest

from bowline.kube.client import KubeClient
from bowline.kube.config import ClusterAccess
from bowline_webhook.repeats import RepeatChecker
from bowline_webhook.review import decode_review
from tests.unit.webhook.reviews import bind_request, encode, review

GROUP = "scheduling.run.ai"


def body(owners: Any, **spec: Any) -> bytes:
    request = bind_request(**spec)
    request["metadata"]["ownerReferences"] = owners
    return encode(review(request, group=GROUP, kind="BindRequest"))


def checker() -> RepeatChecker:
    """A check whose client is not open: any request raises RuntimeError."""
    access = ClusterAccess("http://127.0.0.1:1", cast("Any", Unlocked()))
    return RepeatChecker(KubeClient(access), timedelta(minutes=1))


class Unlocked:
    """No credentials."""

    headers: dict[str, str] = {}
    due = False


@pytest.mark.parametrize("owners", [None, [], [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]])
async def test_without_the_pods_uid_nothing_is_read(owners: Any) -> None:
    """A caller without credentials would otherwise learn why another tenant's pod has failed."""
    assert await checker().errors(decode_review(body(owners))) == ()


async def test_with_the_pods_uid_the_pod_is_read() -> None:
    with pytest.raises(RuntimeError, match="the client is not open"):
        await checker().errors(decode_review(body(None, podUID="pod-uid")))
