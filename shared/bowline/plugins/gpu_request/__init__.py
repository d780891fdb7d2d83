"""Validates what a pod requests of GPUs: whole devices, MIG slices, shares and DRA claims.

Admission only: it mutates nothing and serves no BindRequest. The rules are in ``rules``.
"""

from collections.abc import Iterable

from bowline.api.field_error import FieldError
from bowline.api.meta import Object
from bowline.api.names import OWNED_ANNOTATIONS
from bowline.framework.config import Settings
from bowline.framework.interface.access import Access
from bowline.framework.interface.plugin import AdmissionInfo, AdmissionPlugin, PluginConfig
from bowline.plugins.gpu_request.rule_table import RULES
from bowline.plugins.gpu_request.rules import Policy, request_errors, update_errors


class GpuRequest(AdmissionPlugin):
    """Denies GPU requests that can never be satisfied, and reports all errors together."""

    name = "gpu_request"
    rules = RULES
    access = Access(reviewed_annotations=OWNED_ANNOTATIONS)

    def __init__(self, args: PluginConfig, settings: Settings) -> None:
        super().__init__(args, settings)
        self._policy = Policy(settings.gpu_sharing.enabled, frozenset(settings.gpu_device_classes))

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        if old is not None:
            return update_errors(pod, old)
        return request_errors(pod, self._policy, is_partial=info.is_partial)
