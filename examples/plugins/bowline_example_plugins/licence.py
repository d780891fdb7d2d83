"""A licence per pod, from a server over HTTP: taken before the bind, returned when the pod ends or is not bound.

The server answers PUT and DELETE of /seats/UID; both may be repeated, so a lost reply costs nothing.
"""

import asyncio
from datetime import timedelta

from aiohttp import ClientError, ClientSession, ClientTimeout

from bowline import BindContext, BindingPlugin, BindRequest, Object, PluginConfig, Status, Suggestion

PRODUCT = "example.com/licence"


class LicenceConfig(PluginConfig):
    server: str


class Licence(BindingPlugin[LicenceConfig]):
    name = "example_licence"

    async def run(self) -> None:
        async with ClientSession(timeout=ClientTimeout(total=5)) as self._http:
            await asyncio.Event().wait()

    def applies(self, pod: Object, request: BindRequest) -> bool:
        return bool(_product(pod))

    async def pre_bind(self, ctx: BindContext) -> Status:
        match await self._call("PUT", ctx, product := _product(ctx.pod)):
            case 200 | 201:
                return Status.ok()
            case 409:
                return Status.wait(f"all seats of {product} are taken", retry_after=timedelta(seconds=10))
            case 404:
                return Status.fatal(f"there is no licence of {product}", "NoLicence", Suggestion.DELETE_POD)
            case code:
                return Status.outage(f"the licence server answered {code}")

    async def release(self, ctx: BindContext) -> Status:
        code = await self._call("DELETE", ctx)  # by the UID: the pod may be gone
        return Status.ok() if code in (200, 204, 404) else Status.outage(f"the licence server answered {code}")

    async def _call(self, method: str, ctx: BindContext, product: str = "") -> int | str:
        url = f"{self.args.server}/seats/{ctx.request.pod_uid}"
        try:
            async with self._http.request(method, url, params={"product": product}) as response:
                return response.status
        except (ClientError, TimeoutError) as error:
            return f"{type(error).__name__}: {error}"


def _product(pod: Object | None) -> str:
    annotations: dict[str, str] = (pod or {"metadata": {}})["metadata"].get("annotations") or {}
    return annotations.get(PRODUCT, "")
