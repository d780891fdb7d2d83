"""A plugin for tests of observability: the pod's annotations make it slow, wait or fail.

Loaded by its entry point when this folder is on PYTHONPATH; nothing is installed.
"""

import asyncio
import logging
from collections.abc import Mapping

from bowline.api.meta import ObjectKey, ObjectRef
from bowline.framework.binding.context import BindContext
from bowline.framework.binding.plugin import RUN, SKIP, BindingPlugin, Preflight
from bowline.framework.plugin_status import Status

log = logging.getLogger(__name__)

# What pre_bind does: wait, fail.
PREPARE = "slow.example/pre-bind"
# The duration of post_bind, in seconds.
AFTERWARDS = "slow.example/post-bind-s"


class Slow(BindingPlugin):
    """Waits, fails or is slow, as the annotations request."""

    name = "pair_slow"

    def preflight(self, ctx: BindContext) -> Preflight:
        """Applies only to pods with the annotation."""
        return RUN if PREPARE in _annotations(ctx) else SKIP

    async def pre_bind(self, ctx: BindContext) -> Status:
        """Wait for an object that is never created, or fail."""
        ctx.log.info("slow plugin was asked")
        log.info("a library was asked")
        if _annotations(ctx)[PREPARE] == "wait":
            return Status.wait(
                "the gate is shut", ObjectRef("v1", "ConfigMap", ObjectKey(ctx.request.key.namespace, "gate"))
            )
        return Status.retry("failed on purpose")

    async def post_bind(self, ctx: BindContext) -> None:
        """Delay the completion."""
        await asyncio.sleep(float(_annotations(ctx).get(AFTERWARDS, "0")))


def _annotations(ctx: BindContext) -> Mapping[str, str]:
    return ((ctx.pod or {}).get("metadata") or {}).get("annotations") or {}
