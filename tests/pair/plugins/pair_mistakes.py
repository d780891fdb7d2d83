"""A plugin for tests of a process: the pod's annotation makes it block, or ignore its cancellation."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import Object
from bowline.framework.interface.binding_plugin import BindingPlugin, Budgets
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Status

MISTAKE = "mistakes.example/pre-bind"


class Mistakes(BindingPlugin):
    """Makes the mistake that the annotation names."""

    name = "pair_mistakes"
    budgets = Budgets(call_s=0.5)

    def applies(self, pod: Object, request: BindRequest) -> bool:
        """Only pods with the annotation are concerned."""
        return MISTAKE in _annotations(pod)

    async def pre_bind(self, ctx: BindContext) -> Status:
        """Never end, with or without giving the event loop back."""
        while True:
            if _annotations(ctx.pod)[MISTAKE] == "block":
                time.sleep(25)  # noqa: ASYNC251 - the mistake
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(3600)


def _annotations(pod: Object | None) -> Mapping[str, str]:
    return ((pod or {}).get("metadata") or {}).get("annotations") or {}
