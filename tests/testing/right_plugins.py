"""Right plugins that the kit must not blame, and what is outside of the API server in its checks."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from typing import ClassVar

from bowline import Access, AccessRule, BindContext, BindingPlugin, Object, ObjectClient, Status
from bowline.errors import AlreadyExists, NotFound
from bowline.resources import CONFIGMAPS, PODS
from tests.testing.licence import Licence

# A licence server: its taken seats, and whether it is down.
SERVER: list[str] = []
DOWN: list[bool] = []
ASKED = "example.com/asked"


@contextmanager
def outage() -> Iterator[None]:
    """The licence server does not answer."""
    DOWN.append(True)
    yield
    DOWN.clear()


class Outside(BindingPlugin):
    """Takes a seat outside of the API server, and returns it."""

    name = "outside"
    in_an_outage: ClassVar[Status] = Status.outage("the server is down")
    release_in_an_outage: ClassVar[Status] = Status.outage("the server is down")

    async def pre_bind(self, ctx: BindContext) -> Status:
        if DOWN:
            return self.in_an_outage
        if (seat := f"seat of {ctx.request.pod_uid}") not in SERVER:
            SERVER.append(seat)
        return Status.ok()

    async def release(self, ctx: BindContext) -> Status:
        if DOWN:
            return self.release_in_an_outage
        SERVER[:] = [seat for seat in SERVER if ctx.request.pod_uid not in seat]
        return Status.ok()


class ShortNames(Licence):
    """Names its ConfigMap after the first characters of the pod's UID."""

    name = "short_names"
    access = replace(Licence.access, rules=(AccessRule("configmaps", ("create", "delete"), name_prefix="data-"),))

    async def pre_bind(self, ctx: BindContext) -> Status:
        body = {"metadata": {"name": f"data-{ctx.request.pod_uid[:8]}"}}
        with suppress(AlreadyExists):
            await ctx.client.create(CONFIGMAPS, ctx.request.key.namespace, body)
        return Status.ok()

    async def release(self, ctx: BindContext) -> Status:
        with suppress(NotFound):
            await ctx.client.delete(CONFIGMAPS, ctx.request.key.namespace, f"data-{ctx.request.pod_uid[:8]}")
        return Status.ok()


class Annotating(BindingPlugin):
    """Patches an annotation that it declares on the pod, and removes it."""

    name = "annotating"
    access = Access(pod_annotations=(ASKED,))

    async def pre_bind(self, ctx: BindContext) -> Status:
        return await self._annotate(ctx, "yes")

    async def rollback(self, ctx: BindContext, why: Status) -> Status:
        return await self._annotate(ctx, None)

    async def _annotate(self, ctx: BindContext, value: str | None) -> Status:
        body = {"metadata": {"uid": ctx.request.pod_uid, "annotations": {ASKED: value}}}
        with suppress(NotFound):
            await ctx.client.patch(PODS, *ctx.request.pod_key, body, essential=body)
        return Status.ok()


class Asking(Licence):
    """Waits until another party has answered in its ConfigMap."""

    name = "asking"
    access = replace(
        Licence.access, rules=(AccessRule("configmaps", ("get", "create", "delete"), name_prefix="licence-"),)
    )

    async def pre_bind(self, ctx: BindContext) -> Status:
        await super().pre_bind(ctx)
        key = ctx.request.key
        stored: Object = await ctx.client.get(CONFIGMAPS, key.namespace, f"licence-{key.name}")
        return Status.ok() if stored.get("data") else Status.wait("no answer yet", retry_after=timedelta(seconds=1))


async def answer(client: ObjectClient, namespace: str) -> None:
    """Play the other party: answer what is asked."""
    while True:
        for asked in await client.list_all(CONFIGMAPS, namespace):
            metadata = asked["metadata"]
            if metadata["name"].startswith("licence-") and not asked.get("data"):
                with suppress(NotFound):
                    await client.patch(CONFIGMAPS, namespace, metadata["name"], {"data": {"answer": "yes"}})
        await asyncio.sleep(0.02)
