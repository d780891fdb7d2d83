"""The methods of plugin `dynamic_resources` that admission calls. Pure."""

from collections.abc import Iterable

from bowline.api.bindrequest import AllocationKind, BindRequest, decode_spec
from bowline.api.field_error import FieldError
from bowline.api.meta import Object
from bowline.framework.interface.access import Access, AccessRule
from bowline.framework.interface.plugin import AdmissionInfo, AdmissionPlugin
from bowline.framework.interface.waiting import BindTimeoutConfig
from bowline.plugins.dynamic_resources.rules import RULES, request_errors, request_warnings

SERVED = frozenset({AllocationKind.CLAIMS, AllocationKind.EXTENDED_CLAIM})


class DynamicResourcesAdmission(AdmissionPlugin[BindTimeoutConfig]):
    """The methods of plugin ``dynamic_resources`` that admission calls."""

    name = "dynamic_resources"
    rules = RULES
    access = Access(
        rules=(
            # patch: the finalizer; create and delete: the claim for a pod's extended resources.
            AccessRule("resourceclaims", ("get", "list", "watch", "create", "patch", "delete"), "resource.k8s.io"),
            AccessRule("resourceclaims/status", ("update",), "resource.k8s.io"),
            # Kubernetes 1.36 and newer check this one too when the allocation or reservedFor changes.
            AccessRule("resourceclaims/binding", ("update",), "resource.k8s.io"),
            # Which devices are tainted.
            AccessRule("resourceslices", ("list", "watch"), "resource.k8s.io"),
            AccessRule("devicetaintrules", ("get", "list", "watch"), "resource.k8s.io"),
            # Which of a pod's claims its PodGroup shares.
            AccessRule("podgroups", ("get",), "scheduling.k8s.io"),
        )
    )

    def validate_bind_request(self, request: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        spec, _ = decode_spec(request.get("spec"))
        return [*request_errors(spec), *request_warnings(spec)] if spec is not None else ()

    def has_side_effects(self, request: BindRequest, pod: Object | None) -> bool:
        """Return whether claims will be written; claims without an allocation in the request are only read."""
        return request.spec is not None and not SERVED.isdisjoint(request.spec.demands)
