"""Everything that a plugin imports, in one place: the interface, its values and what its calls are given.

Names in ``__all__`` change only with an entry in the changelog; other modules of ``shared`` may change at any time.
Errors and resources of the API server are in ``shared.kube.errors`` and ``shared.kube.resources``, tools for tests in
``shared.testing``.
"""

from shared.api.bindrequest import AllocationKind, BindRequest, BindRequestSpec, ResourceType
from shared.api.field_error import FieldError
from shared.api.meta import Object, ObjectKey, ObjectRef, ObjectUID
from shared.framework.access import Access, Rule
from shared.framework.binding.context import BindContext
from shared.framework.binding.handle import EventSource, Handle, Reconcile, Route
from shared.framework.binding.metrics import PluginMetrics
from shared.framework.binding.plugin import RUN, RUN_PARALLEL, SKIP, SKIP_PARALLEL, BindingPlugin, Budgets, Preflight
from shared.framework.binding.post import bind_by_post, denied_status
from shared.framework.config import Settings
from shared.framework.gates import FeatureGates, Gate, Stage
from shared.framework.mutable import MutableObject, MutablePod
from shared.framework.plugin import AdmissionInfo, AdmissionPlugin, Inventory, PluginConfig
from shared.framework.status import Code, Reason, Status, Suggestion
from shared.framework.waiting import PREREQUISITE, BindTimeoutConfig

__all__ = [
    "PREREQUISITE",
    "RUN",
    "RUN_PARALLEL",
    "SKIP",
    "SKIP_PARALLEL",
    "Access",
    "AdmissionInfo",
    "AdmissionPlugin",
    "AllocationKind",
    "BindContext",
    "BindRequest",
    "BindRequestSpec",
    "BindTimeoutConfig",
    "BindingPlugin",
    "Budgets",
    "Code",
    "EventSource",
    "FeatureGates",
    "FieldError",
    "Gate",
    "Handle",
    "Inventory",
    "MutableObject",
    "MutablePod",
    "Object",
    "ObjectKey",
    "ObjectRef",
    "ObjectUID",
    "PluginConfig",
    "PluginMetrics",
    "Preflight",
    "Reason",
    "Reconcile",
    "ResourceType",
    "Route",
    "Rule",
    "Settings",
    "Stage",
    "Status",
    "Suggestion",
    "bind_by_post",
    "denied_status",
]
