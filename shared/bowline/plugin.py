"""What the author of a plugin imports from ``bowline``: the interface, its values and what its calls are given.

The promise of stability is in the docstring of ``bowline``; the names are in a test's snapshot.
"""

from bowline.api.bindrequest import BindRequest
from bowline.api.field_error import FieldError
from bowline.api.meta import Object, ObjectKey, ObjectRef
from bowline.api.rule import Rule, Severity
from bowline.framework.binding.post import bind_by_post
from bowline.framework.config import Settings
from bowline.framework.interface.access import Access, AccessRule
from bowline.framework.interface.binding_plugin import BindingPlugin, Budgets
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.handle import EventSource, Handle
from bowline.framework.interface.metrics import PluginMetrics
from bowline.framework.interface.mutable import MutableObject, MutablePod
from bowline.framework.interface.plugin import AdmissionInfo, AdmissionPlugin, PluginConfig
from bowline.framework.interface.status import Done, Fatal, Retriable, Status, Waiting
from bowline.framework.reason import Suggestion
from bowline.kube.object_client import ObjectClient

__all__ = [
    "Access",
    "AccessRule",
    "AdmissionInfo",
    "AdmissionPlugin",
    "BindContext",
    "BindRequest",
    "BindingPlugin",
    "Budgets",
    "Done",
    "EventSource",
    "Fatal",
    "FieldError",
    "Handle",
    "MutableObject",
    "MutablePod",
    "Object",
    "ObjectClient",
    "ObjectKey",
    "ObjectRef",
    "PluginConfig",
    "PluginMetrics",
    "Retriable",
    "Rule",
    "Settings",
    "Severity",
    "Status",
    "Suggestion",
    "Waiting",
    "bind_by_post",
]
