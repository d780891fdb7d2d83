"""Passes a share to NVIDIA's GPU fractioning, which enforces its memory and compute on the node.

A node agent reads annotations of the pod before it creates a container. At admission the plugin translates between
these annotations and those of KAI-Scheduler, and denies users the two that name devices and limit compute. At binding
the Binding carries them, so that they exist before a kubelet sees the pod. Devices are reserved by ``gpu_sharing``,
which writes its ConfigMaps as well. With ``gpuSharing.nvFractions: Auto`` it acts only on nodes whose agents report
that they work. The rules are in ``rules``; off by default. Decisions 208 and 251.
"""

from collections.abc import Iterable, Mapping
from itertools import chain

from bowline.api.gpu_share import SHARED_DEVICES
from bowline.plugin import (
    AdmissionInfo,
    AdmissionPlugin,
    BindContext,
    BindingPlugin,
    BindRequest,
    FieldError,
    MutablePod,
    Object,
    Reason,
    Settings,
    Status,
    Suggestion,
)
from bowline.plugins.nv_fractions.config import NvFractionsConfig
from bowline.plugins.nv_fractions.rule_table import RULES
from bowline.plugins.nv_fractions.rules import (
    added_annotations,
    binding_annotations,
    change_errors,
    foreign_devices,
    guard_errors,
    is_ready,
    pod_errors,
    unserved_reason,
)
from bowline.plugins.reads import NV_FRACTIONS


class NvFractions(AdmissionPlugin[NvFractionsConfig], BindingPlugin[NvFractionsConfig]):
    """Writes what the node's GPU fractioning reads, and guards it."""

    name = "nv_fractions"
    reads = NV_FRACTIONS
    rules = RULES
    # A pod that requests memory in NVIDIA's form is a share for the other plugins from here on.
    before = ("gpu_sharing", "hami_core", "runtime_class", "device_access")

    def __init__(self, args: NvFractionsConfig, settings: Settings) -> None:
        super().__init__(args, settings)
        self._acts_everywhere = settings.nv_fractions != "Auto"

    # --- admission ---

    def mutate_pod(self, pod: MutablePod, info: AdmissionInfo) -> None:
        for annotation, value in added_annotations(pod.raw, translates_all=self._acts_everywhere).items():
            pod.set_annotation(annotation, value)

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        """Deny the binder's annotations to everyone else; of a stored pod validate the changes only."""
        annotations = pod["metadata"].get("annotations") or {}
        before = (old["metadata"].get("annotations") or {}) if old is not None else {}
        guarded = () if info.user in self.args.trusted_users else guard_errors(annotations, before)
        return chain(guarded, change_errors(annotations, before) if old is not None else pod_errors(pod))

    # --- binding ---

    def applies(self, pod: Object, request: BindRequest) -> bool:
        return request.is_share or bool(foreign_devices(pod))

    async def pre_bind(self, ctx: BindContext) -> Status:
        """Fail if the annotations cannot be computed, or if the pod has a list of devices that no Binding wrote.

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
            runtime_class = self.settings.gpu_sharing.runtime_class_name
            error = unserved_reason(ctx.pod, ctx.spec.selected_node, runtime_class)
        else:
            _, error = self._annotations(ctx)
        return Status.fatal(error, Reason.REJECTED, Suggestion.RESCHEDULE_ELSEWHERE) if error else Status.ok()

    def binding_annotations(self, ctx: BindContext) -> Mapping[str, str]:
        return self._annotations(ctx)[0] if ctx.request.is_share and self._serves(ctx) else {}

    def _serves(self, ctx: BindContext) -> bool:
        """Return whether the plugin acts on the node."""
        return self._acts_everywhere or (ctx.node is not None and is_ready(ctx.node))

    def _annotations(self, ctx: BindContext) -> tuple[dict[str, str], str]:
        received = ctx.spec.received_gpu
        if not ctx.request.is_share or received is None or ctx.pod is None or ctx.node is None:
            return {}, ""
        devices, reserved = ctx.shared.get(SHARED_DEVICES, ""), self.settings.gpu_sharing.reserved_mebibytes
        return binding_annotations(ctx.pod, ctx.node, received, devices, reserved)
