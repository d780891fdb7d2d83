"""Sets the runtime class under which the container of a GPU share sees its device.

Admission only. The kubelet assigns the device of a whole GPU. The container of a share only names its device in the
environment, and the runtime of this class acts on that name. A pod that names a runtime class keeps it. In NRI mode
of NVIDIA's GPU operator no class is set: the Binding names the device. Where else the class is known not to exist, a
share is denied with the reason, or, if NVIDIA's GPU fractioning gives it its device, gets no class.
"""

from collections.abc import Iterable
from typing import Final

from bowline.api.field_error import FieldError
from bowline.api.gpu_operator import runtime_problem
from bowline.api.gpu_share import wants_share
from bowline.api.meta import Object
from bowline.api.rule import DenialCause, Rule, Severity
from bowline.framework.interface.mutable import MutablePod
from bowline.framework.interface.plugin import AdmissionInfo, AdmissionPlugin

MISSING: Final = Rule(
    "runtime_class/missing",
    "a sharing pod reaches the validating webhook without a runtime class: mutation was skipped",
    cause=DenialCause.REQUIRED,
)
ABSENT: Final = Rule(
    "runtime_class/absent",
    "the RuntimeClass that `gpuSharing.runtimeClassName` names does not exist in the cluster, as where NVIDIA's GPU "
    "operator is in NRI mode with a container toolkit before 1.20",
    cause=DenialCause.NOT_FOUND,
)
MODE: Final = Rule(
    "runtime_class/operator-mode",
    "`gpuSharing.runtimeClassName` is empty, and NVIDIA's GPU operator is in NRI mode with a container toolkit "
    "before 1.20: a share may see no GPU",
    severity=Severity.WARNS,
)

RULES: Final = (MISSING, ABSENT, MODE)


class RuntimeClass(AdmissionPlugin):
    """Sets ``spec.runtimeClassName`` of sharing pods to ``gpuSharing.runtimeClassName``; empty disables it."""

    name = "runtime_class"
    rules = RULES

    def mutate_pod(self, pod: MutablePod, info: AdmissionInfo) -> None:
        name = self.settings.gpu_sharing.runtime_class_name
        if self._lacks_class(pod.raw) and info.gpu_runtime.gives_by_class(name):
            pod.set(name, "spec", "runtimeClassName")

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        if old is not None or not self._lacks_class(pod):
            return
        name, runtime, path = self.settings.gpu_sharing.runtime_class_name, info.gpu_runtime, "spec.runtimeClassName"
        problem = runtime_problem(runtime, name, are_fractioned=bool(self.settings.nv_fractions))
        if problem is not None:
            yield FieldError(ABSENT if problem.denies else MODE, path, None, str(problem))
        elif info.is_validating_webhook and runtime.gives_by_class(name):
            message = (
                f"must be named for a GPU share, or its container has no GPU; the mutating webhook, which sets "
                f"{name}, was unavailable: create the pod again, or name a class yourself"
            )
            yield FieldError(MISSING, path, None, message)

    def _lacks_class(self, pod: Object) -> bool:
        return self.settings.gpu_sharing.enabled and wants_share(pod) and not pod["spec"].get("runtimeClassName")
