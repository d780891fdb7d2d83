"""Sets the runtime class under which the container of a GPU share sees its device.

Admission only. The kubelet assigns the device of a whole GPU. The container of a share only names its device in the
environment, and the runtime of this class acts on that name. A pod that names a runtime class keeps it.
"""

from collections.abc import Iterable
from typing import Final

from bowline.api.field_error import FieldError
from bowline.api.gpu_share import wants_share
from bowline.api.meta import Object
from bowline.api.rule import DenialCause, Rule
from bowline.framework.mutable import MutablePod
from bowline.framework.plugin import AdmissionInfo, AdmissionPlugin

MISSING: Final = Rule(
    "runtime_class/missing",
    "a sharing pod reaches the validating webhook without a runtime class: mutation was skipped",
    cause=DenialCause.REQUIRED,
)

RULES: Final = (MISSING,)


class RuntimeClass(AdmissionPlugin):
    """Sets ``spec.runtimeClassName`` of sharing pods to ``gpuSharing.runtimeClassName``; empty disables it."""

    name = "runtime_class"
    rules = RULES

    def mutate_pod(self, pod: MutablePod, info: AdmissionInfo) -> None:
        if self._is_missing(pod.raw):
            pod.set(self.settings.gpu_sharing.runtime_class_name, "spec", "runtimeClassName")

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        if old is not None or not info.is_validating_webhook or not self._is_missing(pod):
            return
        runtime_class_name = self.settings.gpu_sharing.runtime_class_name
        message = (
            f"must be named for a GPU share, or its container has no GPU; the mutating webhook, which sets "
            f"{runtime_class_name}, was unavailable: create the pod again, or name a class yourself"
        )
        yield FieldError(MISSING, "spec.runtimeClassName", None, message)

    def _is_missing(self, pod: Object) -> bool:
        sharing = self.settings.gpu_sharing
        is_configured = bool(sharing.enabled and sharing.runtime_class_name)
        return is_configured and wants_share(pod) and not pod["spec"].get("runtimeClassName")
