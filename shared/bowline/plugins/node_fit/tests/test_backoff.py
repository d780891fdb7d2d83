"""A request in backoff reserves no capacity."""

from decimal import Decimal
from typing import Any, cast

from bowline.api.bindrequest import decode_bind_request
from bowline.api.meta import ObjectUID
from bowline.framework.config import Settings
from bowline.framework.interface.plugin import PluginConfig
from bowline.plugins.node_fit import NodeFit
from bowline.plugins.node_fit.assumed_pods import AssumedPod
from bowline.testing.builders import bind_request, stored


class Attempt:
    """The fields of an attempt that on_failure reads."""

    def __init__(self, request: Any) -> None:
        self.request = request


def test_a_failed_attempt_releases_its_resources() -> None:
    plugin = NodeFit(PluginConfig(), Settings())
    request = decode_bind_request(stored(bind_request()))
    plugin._assumed_pods.assume(request.key, AssumedPod("node", ObjectUID("uid"), {"cpu": Decimal(1)}))
    assert plugin._assumed_pods.begin("node").assumed_pods
    plugin.on_failure(cast(Any, Attempt(request)))
    assert not plugin._assumed_pods.begin("node").assumed_pods
