"""A plugin for tests of observability: the pod's annotations make it wait or fail.

Loaded by its entry point when this folder is on PYTHONPATH; nothing is installed.
"""

import logging
from collections.abc import Mapping

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import Object, ObjectKey, ObjectRef
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Status

log = logging.getLogger(__name__)

# What pre_bind does: wait, fail.
PREPARE = "slow.example/pre-bind"


class Slow(BindingPlugin):
    """Waits or fails, as the annotation requests."""

    name = "pair_slow"

    def applies(self, pod: Object, request: BindRequest) -> bool:
        """Only pods with the annotation are concerned."""
        return PREPARE in _annotations(pod)

    async def pre_bind(self, ctx: BindContext) -> Status:
        """Wait for an object that is never created, or fail."""
        log.info("slow plugin was asked")
        if _annotations(ctx.pod)[PREPARE] == "wait":
            return Status.wait(
                "the gate is shut", ObjectRef("v1", "ConfigMap", ObjectKey(ctx.request.key.namespace, "gate"))
            )
        return Status.retry("failed on purpose")


def _annotations(pod: Object | None) -> Mapping[str, str]:
    return ((pod or {}).get("metadata") or {}).get("annotations") or {}
