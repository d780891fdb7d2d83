"""A plugin for tests of observability: the pod's annotations make it slow, wait or fail.

Loaded by its entry point when this folder is on PYTHONPATH; nothing is installed.
"""

import asyncio
import logging
from collections.abc import Mapping

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import Object, ObjectKey, ObjectRef
from bowline.framework.binding.context import BindContext
from bowline.framework.binding.plugin import BindingPlugin
from bowline.framework.plugin_status import Status

log = logging.getLogger(__name__)

# What pre_bind does: wait, fail.
PREPARE = "slow.example/pre-bind"
# The duration of post_bind, in seconds.
AFTERWARDS = "slow.example/post-bind-s"


class Slow(BindingPlugin):
    """Waits, fails or is slow, as the annotations request."""

    name = "pair_slow"

    def applies(self, pod: Object, request: BindRequest) -> bool:
        """Only pods with an annotation are concerned."""
        return not {PREPARE, AFTERWARDS}.isdisjoint(_annotations(pod))

    async def pre_bind(self, ctx: BindContext) -> Status:
        """Wait for an object that is never created, or fail."""
        if PREPARE not in _annotations(ctx.pod):
            return Status.ok()
        ctx.log.info("slow plugin was asked")
        log.info("a library was asked")
        if _annotations(ctx.pod)[PREPARE] == "wait":
            return Status.wait(
                "the gate is shut", ObjectRef("v1", "ConfigMap", ObjectKey(ctx.request.key.namespace, "gate"))
            )
        return Status.retry("failed on purpose")

    async def post_bind(self, ctx: BindContext) -> None:
        """Delay the completion."""
        await asyncio.sleep(float(_annotations(ctx.pod).get(AFTERWARDS, "0")))


def _annotations(pod: Object | None) -> Mapping[str, str]:
    return ((pod or {}).get("metadata") or {}).get("annotations") or {}
