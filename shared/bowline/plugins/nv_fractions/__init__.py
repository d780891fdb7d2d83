"""Passes a share to NVIDIA's GPU fractioning, which enforces its memory on the node.

A node agent reads annotations of the pod before it creates a container. At admission the plugin translates between
these annotations and those of KAI-Scheduler. At binding the Binding carries them, so that they exist before a kubelet
sees the pod. Devices are reserved by ``gpu_sharing``, which writes its ConfigMaps as well and guards the names of
devices. With ``gpuSharing.nvFractions: Auto`` it acts only on nodes whose agents report that they work. The rules are
in ``rules``; off by default. Decision 208.
"""

from collections.abc import Iterable, Mapping

from bowline.api.field_error import annotation_path
from bowline.api.gpu_operator import is_fractioned
from bowline.api.gpu_share import SHARED_DEVICES
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
    PluginConfig,
    Settings,
    Status,
    Suggestion,
)
from bowline.plugins.nv_fractions.rule_table import RULES, UNPREPARED
from bowline.plugins.nv_fractions.rules import (
    added_annotations,
    binding_annotations,
    change_errors,
    foreign_devices,
    long_key_reason,
    pod_errors,
    unserved_reason,
)


class NvFractions(AdmissionPlugin, BuiltinBindingPlugin):
    """Writes what the node's GPU fractioning reads."""

    name = "nv_fractions"
    rules = RULES
    # A pod that requests memory in NVIDIA's form is a share for the other plugins from here on.
    before = ("gpu_sharing", "hami_core", "runtime_class", "device_access")

    def __init__(self, args: PluginConfig, settings: Settings) -> None:
        super().__init__(args, settings)
        self._acts_everywhere = settings.nv_fractions != "Auto"

    # --- admission ---

    def mutate_pod(self, pod: MutablePod, info: AdmissionInfo) -> None:
        for annotation, value in added_annotations(pod.raw, translates_all=self._acts_everywhere).items():
            pod.set_annotation(annotation, value)

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        if old is not None:
            return change_errors(pod["metadata"].get("annotations") or {}, old["metadata"].get("annotations") or {})
        lacking = added_annotations(pod, translates_all=self._acts_everywhere) if info.is_validating_webhook else ()
        return [
            *pod_errors(pod),
            *(FieldError(UNPREPARED, annotation_path(key), None, UNPREPARED.message) for key in lacking),
        ]

    # --- binding ---

    def applies(self, pod: Object, request: BindRequest) -> bool:
        return request.is_share or bool(foreign_devices(pod))

    async def pre_bind(self, ctx: BindContext) -> Status:
        """Fail if there are no such annotations, or if the pod has a list of devices that no Binding wrote.

        On a node without working agents fail for a pod that needs them.
        """
        assert ctx.pod is not None  # noqa: S101 - an attempt has a pod
        foreign = foreign_devices(ctx.pod)
        if foreign:
            why = (
                f"metadata.annotations[{foreign[0]}]: only the reconciler sets it, with the Binding; it was written "
                "while neither webhook nor policy guarded it; create the pod again without it"
            )
            return Status.fatal(why, Reason.REJECTED, Suggestion.DELETE_POD)
        if ctx.request.is_share and not self._serves(ctx):
            error = unserved_reason(ctx.pod, ctx.spec.selected_node)
        else:
            annotations, error = self._annotations(ctx)
            why = long_key_reason(annotations)
            if why:
                return Status.fatal(why, Reason.REJECTED, Suggestion.DELETE_POD)
        return Status.fatal(error, Reason.REJECTED, Suggestion.RESCHEDULE_ELSEWHERE) if error else Status.ok()

    def binding_annotations(self, ctx: BindContext) -> Mapping[str, str]:
        return self._annotations(ctx)[0] if ctx.request.is_share and self._serves(ctx) else {}

    def _serves(self, ctx: BindContext) -> bool:
        """Return whether the plugin acts on the node."""
        return self._acts_everywhere or is_fractioned(self.settings.nv_fractions, ctx.node)

    def _annotations(self, ctx: BindContext) -> tuple[dict[str, str], str]:
        received = ctx.spec.received_gpu
        if not ctx.request.is_share or received is None or ctx.pod is None or ctx.node is None:
            return {}, ""
        devices, reserved = ctx.shared.get(SHARED_DEVICES, ""), self.settings.gpu_sharing.reserved_mebibytes
        return binding_annotations(ctx.pod, ctx.node, received, devices, reserved)
