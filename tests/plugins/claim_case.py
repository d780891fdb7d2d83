"""The plugin of ResourceClaims in the test's process, called as a reconcile calls it."""

from typing import Any

from bowline.api.bindrequest import decode_bind_request
from bowline.framework.config import Settings
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.waiting import BindTimeoutConfig
from bowline.kube.client import KubeClient
from bowline.kube.resources import NODES, PODS, RESOURCECLAIMS
from bowline.plugins.dynamic_resources.plugin import DynamicResources
from bowline.testing.builders import bind_request, pod, stored
from bowline.testing.handles import handle_for
from tests.plugins.claims import NODE


async def new_plugin(client: KubeClient) -> DynamicResources:
    """A plugin without state in memory, as after a restart."""
    plugin = DynamicResources(BindTimeoutConfig(), Settings())
    await plugin.setup(handle_for(plugin.name, client, clock=client.clock))
    return plugin


class Case:
    """A namespace, and the arguments of the plugin's calls."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self.client = client
        self.namespace = namespace

    async def pod(self, name: str = "pod", **spec: Any) -> dict[str, Any]:
        return await self.client.create(PODS, self.namespace, pod(name, self.namespace, **spec))

    async def create(self, body: dict[str, Any]) -> dict[str, Any]:
        return await self.client.create(RESOURCECLAIMS, self.namespace, body)

    async def claim(self, name: str = "one") -> dict[str, Any]:
        return await self.client.get(RESOURCECLAIMS, self.namespace, name)

    async def claims(self) -> list[dict[str, Any]]:
        return await self.client.list_all(RESOURCECLAIMS, self.namespace)

    async def context(self, of: dict[str, Any], **spec: Any) -> BindContext:
        """The context for the pod as it is stored now."""
        metadata = of["metadata"]
        fresh = await self.client.get(PODS, self.namespace, metadata["name"])
        request = stored(bind_request(metadata["name"], NODE, self.namespace, metadata["uid"], **spec))
        return BindContext(
            request=decode_bind_request(request),
            pod=fresh,
            node=await self.client.get(NODES.as_metadata(), "", NODE),
            attempt=1,
            client=self.client,
        )
