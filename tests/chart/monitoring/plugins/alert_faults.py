"""Plugins with the faults that alerts report: the pod's annotation names one.

Loaded by their entry points when this folder is on PYTHONPATH; nothing is installed.
"""

import asyncio
import time
from collections.abc import Iterable

from bowline import AdmissionInfo, AdmissionPlugin, BindContext, BindingPlugin, FieldError, Object, Status
from bowline.api.meta import ObjectKey, ObjectRef

FAULT = "alerts.example/fault"
RAISE, FAIL, WAIT, SLOW = "raise", "fail", "wait", "slow"
RAISE_REVIEW, SLOW_REVIEW = "raise-review", "slow-review"
# Longer than the overdue threshold of post_bind.
SLOW_S = 3.0


class BindingFaults(BindingPlugin):
    """Raises, fails or waits in pre_bind, or is slow in post_bind."""

    name = "alert_binding"

    async def pre_bind(self, ctx: BindContext) -> Status:
        """Raise, fail, or wait for an object that is never created."""
        fault = _fault(ctx.pod)
        if fault == RAISE:
            raise RuntimeError("raised on purpose")
        if fault == FAIL:
            return Status.fatal("failed on purpose")
        if fault == WAIT:
            return Status.wait("never", ObjectRef("v1", "ConfigMap", ObjectKey(ctx.request.key.namespace, "never")))
        return Status.ok()

    async def post_bind(self, ctx: BindContext) -> None:
        """Delay the completion."""
        if _fault(ctx.pod) == SLOW:
            await asyncio.sleep(SLOW_S)


class ReviewFaults(AdmissionPlugin):
    """Raises, or blocks the review."""

    name = "alert_review"

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        """Admit every other pod."""
        fault = _fault(pod)
        if fault == RAISE_REVIEW:
            raise RuntimeError("raised on purpose")
        if fault == SLOW_REVIEW:
            time.sleep(SLOW_S)
        return ()


def _fault(pod: Object | None) -> str | None:
    return (((pod or {}).get("metadata") or {}).get("annotations") or {}).get(FAULT)
