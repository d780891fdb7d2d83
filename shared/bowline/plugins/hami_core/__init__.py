"""Passes a share's GPU memory limit to HAMi core, the library that enforces it inside the container.

At admission the container's environment gets a reference to a key of the share's ConfigMap. ``gpu_sharing`` writes
that key together with the rest of the ConfigMap, which is immutable. Off by default: without the library in the
container it has no effect. A limit that cannot be computed fails the bind: a container without a limit would use the
whole device.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from bowline.api import names
from bowline.api.field_error import annotation_path
from bowline.api.gpu_share import capabilities_map, configmap_prefix, memory_limit, share_target, wants_share
from bowline.api.rule import DenialCause, Rule, Severity
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.reason import Reason
from bowline.plugin import (
    AdmissionInfo,
    AdmissionPlugin,
    BindContext,
    BindRequest,
    FieldError,
    MutablePod,
    Object,
    Status,
    Suggestion,
)

PORTION: Final = Rule(
    "hami_core/portion",
    "`gpu-fraction` is below 0.005 while plugin hami_core is enabled: schedulers write the portion with two "
    "decimals, and `0.00` defines no limit",
)
UNPREPARED: Final = Rule(
    "hami_core/unprepared",
    "a sharing pod reaches the validating webhook without the variable of its limit",
    cause=DenialCause.REQUIRED,
)

ENVIRONMENT: Final = Rule(
    "hami_core/environment",
    "plugin hami_core: the container of a share sets `CUDA_DEVICE_MEMORY_LIMIT`: the entry is replaced",
    severity=Severity.WARNS,
)

RULES: Final = (
    PORTION,
    UNPREPARED,
    ENVIRONMENT,
)


class HamiCore(AdmissionPlugin, BuiltinBindingPlugin):
    """Limits the device memory of shares."""

    name = "hami_core"
    rules = RULES
    requires = ("gpu_sharing",)

    # --- admission ---

    def mutate_pod(self, pod: MutablePod, info: AdmissionInfo) -> None:
        """Make the share's container take its limit from the ConfigMap, replacing other entries of that name."""
        target = share_target(pod.raw) if wants_share(pod.raw) else None
        limit_entry = _limit_entry(pod.raw)
        if target is None or limit_entry is None:
            return
        env = target.container.get("env") or []
        if not _has_limit(env, limit_entry):
            _warn_of_replaced(pod, f"spec.{target.field}[{target.index}]", env)
            other_entries = [entry for entry in env if entry.get("name") != names.DEVICE_MEMORY_LIMIT]
            pod.set([*other_entries, limit_entry], "spec", target.field, target.index, "env")

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        """Deny a share that is too small for a limit and, at the final hook, a pod that was not mutated."""
        if old is not None:
            return
        yield from _portion_errors(pod)
        target = share_target(pod) if wants_share(pod) else None
        limit_entry = _limit_entry(pod)
        if not info.is_validating_webhook or target is None or limit_entry is None:
            return
        if not _has_limit(target.container.get("env") or [], limit_entry):
            message = (
                f"the container of the GPU share lacks {names.DEVICE_MEMORY_LIMIT}, which the mutating webhook adds: "
                "it was unavailable or something changed the pod after it; create the pod again"
            )
            path = f"spec.{target.field}[{target.index}].env"
            yield FieldError(UNPREPARED, path, None, message)

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


def _limit_entry(pod: Object) -> dict[str, Any] | None:
    """Return the variable to add to the container; None if the pod has no ConfigMap or no share."""
    prefix, target = configmap_prefix(pod), share_target(pod)
    if not prefix or target is None:
        return None
    # Optional, so that pods prepared while the plugin is enabled still start after it has been disabled.
    reference = {"name": capabilities_map(prefix, target), "key": names.DEVICE_MEMORY_LIMIT, "optional": True}
    return {"name": names.DEVICE_MEMORY_LIMIT, "valueFrom": {"configMapKeyRef": reference}}


def _warn_of_replaced(pod: MutablePod, container: str, env: list[Any]) -> None:
    """Warn about values that the author wrote; a reference may be of an earlier review."""
    for index, entry in enumerate(env):
        if entry.get("name") == names.DEVICE_MEMORY_LIMIT and entry.get("value"):
            message = f"{names.DEVICE_MEMORY_LIMIT} is replaced: the share sets it to its own limit; remove the entry"
            pod.warn(FieldError(ENVIRONMENT, f"{container}.env[{index}].value", entry["value"], message))
            return


def _has_limit(env: list[Any], limit_entry: dict[str, Any]) -> bool:
    return [entry for entry in env if entry.get("name") == names.DEVICE_MEMORY_LIMIT] == [limit_entry]


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
