"""A plugin that takes its time, waits, or raises, as the pod's annotations say: for tests of what is seen of it.

Found by its entry point when this folder is on PYTHONPATH; nothing is installed.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping

from shared.api.meta import ObjectKey, ObjectRef
from shared.framework.binding.context import BindContext
from shared.framework.binding.handle import Route
from shared.framework.plugin import RUN, SKIP, Plugin, Preflight
from shared.framework.status import Status

log = logging.getLogger(__name__)

# What pre_bind does: wait, raise.
PREPARE = "slow.example/pre-bind"
# How long post_bind takes, in seconds.
AFTERWARDS = "slow.example/post-bind-s"


class Slow(Plugin):
    """Does as it is told."""

    name = "pair_slow"

    def preflight(self, ctx: BindContext) -> Preflight:
        """Only pods with the annotation are touched."""
        return RUN if PREPARE in _annotations(ctx) else SKIP

    async def pre_bind(self, ctx: BindContext) -> Status:
        """Wait for an object that never comes, or raise."""
        ctx.log.info("slow plugin was asked")
        log.info("a library was asked")
        if _annotations(ctx)[PREPARE] == "wait":
            return Status.wait(
                "the gate is shut", ObjectRef("v1", "ConfigMap", ObjectKey(ctx.request.key.namespace, "gate"))
            )
        raise RuntimeError("raised on purpose")

    async def post_bind(self, ctx: BindContext) -> None:
        """Hold the end of the bind up."""
        await asyncio.sleep(float(_annotations(ctx).get(AFTERWARDS, "0")))

    def routes(self) -> Iterable[Route]:
        """One page that works and one that does not."""
        return (Route("gates", lambda: {"shut": 1}), Route("broken", self._broken))

    def _broken(self) -> object:
        raise RuntimeError("no page today")


def _annotations(ctx: BindContext) -> Mapping[str, str]:
    return ((ctx.pod or {}).get("metadata") or {}).get("annotations") or {}
