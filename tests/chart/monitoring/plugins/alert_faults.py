"""Plugins with the faults that alerts report: the pod's annotation names one.

Loaded by their entry points when this folder is on PYTHONPATH; nothing is installed.
"""

import time
from collections.abc import Iterable

from bowline import AdmissionInfo, AdmissionPlugin, BindContext, BindingPlugin, FieldError, Object, Status
from bowline.api.meta import ObjectKey, ObjectRef

FAULT = "alerts.example/fault"
RAISE, FAIL, WAIT = "raise", "fail", "wait"
RAISE_REVIEW, SLOW_REVIEW = "raise-review", "slow-review"
# Longer than the shortened limit of a review.
SLOW_S = 3.0


class BindingFaults(BindingPlugin):
    """Raises, fails or waits in pre_bind."""

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
