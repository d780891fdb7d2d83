"""Denies Bindings of pods that have a BindRequest. Alpha; behind the feature gate BindingGuard.

Admission of Bindings only. A pod that another component binds while its BindRequest is being processed runs without
its assigned device, or holds two. Without this plugin Bowline detects that and reports BoundElsewhere; this plugin
prevents it. The chart exempts the reconciler's own Bindings from the hook, so binding never depends on the webhook.
The hook fails open, because the Bindings of every other scheduler pass through it.
"""

from collections.abc import Iterable
from typing import Any

from shared.plugin import AdmissionInfo, FieldError, ObjectKey, Plugin, Settings
from shared.plugins.binding_guard.config import BindingGuardConfig
from shared.plugins.binding_guard.rules import guard_faults


class BindingGuard(Plugin):
    """Denies Bindings of guarded pods by users that are not in ``allowedUsers``."""

    name = "binding_guard"
    config_model = BindingGuardConfig
    gate = "BindingGuard"

    def __init__(self, args: Any, settings: Settings) -> None:
        super().__init__(args, settings)
        self._allowed = frozenset(args.allowed_users)

    def validate_binding(self, pod: ObjectKey, info: AdmissionInfo) -> Iterable[FieldError]:
        return guard_faults(pod, info, self._allowed)
