"""Passes a share's GPU memory limit to HAMi core, the library that enforces it inside the container.

While this plugin is enabled, ``gpu_sharing`` adds a reference to the limit to the container's environment, and writes
it into the share's ConfigMap. Off by default: without the library in the container it has no effect. A limit that
cannot be computed fails the bind: a container without a limit would use the whole device.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from bowline.api import names
from bowline.api.field_error import annotation_path
from bowline.api.gpu_share import memory_limit
from bowline.api.rule import Rule
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.reason import Reason
from bowline.plugin import (
    AdmissionInfo,
    AdmissionPlugin,
    BindContext,
    BindRequest,
    FieldError,
    Object,
    Status,
    Suggestion,
)

PORTION: Final = Rule(
    "hami_core/portion",
    "`gpu-fraction` is below 0.005 while plugin hami_core is enabled: schedulers write the portion with two "
    "decimals, and `0.00` defines no limit",
)
RULES: Final = (PORTION,)


class HamiCore(AdmissionPlugin, BuiltinBindingPlugin):
    """Limits the device memory of shares."""

    name = "hami_core"
    rules = RULES
    requires = ("gpu_sharing",)

    # --- admission ---

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        """Deny a share that is too small for a limit."""
        return () if old is not None else _portion_errors(pod)

    # --- binding ---

    def applies(self, pod: Object, request: BindRequest) -> bool:
        return request.is_share

    async def pre_bind(self, ctx: BindContext) -> Status:
        """Fail if the limit that gpu_sharing writes into the pod's ConfigMap cannot be computed."""
        received_gpu = ctx.spec.received_gpu
        if ctx.pod is None or received_gpu is None or ctx.node is None:
            return Status.skip()
        limit, error = memory_limit(
            ctx.pod, ctx.node, received_gpu.share, self.settings.gpu_sharing.reserved_mebibytes
        )
        if not limit:
            return Status.fatal(error, Reason.REJECTED, Suggestion.RESCHEDULE_ELSEWHERE)
        return Status.ok()


def _portion_errors(pod: Object) -> Iterator[FieldError]:
    """Yield an error for a fraction that a scheduler writes as the portion ``0.00``, from which no limit follows.

    A value that is not a number is reported by plugin gpu_request.
    """
    text = (pod["metadata"].get("annotations") or {}).get(names.GPU_FRACTION)
    if text is None:
        return
    try:
        portion = f"{float(text):.2f}"
    except ValueError:
        return
    if portion == "0.00":
        message = (
            "must be at least 0.005 while plugin hami_core limits the memory of shares: the scheduler writes it as a "
            f"portion of 0.00; ask for an amount of memory with {names.GPU_MEMORY} instead"
        )
        yield FieldError(PORTION, annotation_path(names.GPU_FRACTION), text, message)
