"""Keeps others from binding pods whose bind is being prepared. Alpha; behind the feature gate BindingGuard.

Admission only, of Bindings. A pod that somebody else binds while its BindRequest is carried out runs without the
device that it was promised, or holds two. Bowline notices and says BoundElsewhere; this prevents it. The chart lets
the reconciler's own Bindings pass without a call, so binding never depends on the webhook; and the hook fails open,
because every other scheduler's Bindings go through it.
"""

from collections.abc import Iterable
from typing import Any

from shared.api.field_error import FieldError
from shared.api.meta import ObjectKey
from shared.framework.config import Settings
from shared.framework.plugin import AdmissionInfo, Plugin
from shared.plugins.binding_guard.config import BindingGuardConfig
from shared.plugins.binding_guard.rules import guard_faults


class BindingGuard(Plugin):
    """Refuses Bindings of guarded pods by users that are not listed."""

    name = "binding_guard"
    config_model = BindingGuardConfig
    gate = "BindingGuard"

    def __init__(self, args: Any, settings: Settings) -> None:
        super().__init__(args, settings)
        self._allowed = frozenset(args.allowed_users)

    def validate_binding(self, pod: ObjectKey, info: AdmissionInfo) -> Iterable[FieldError]:
        return guard_faults(pod, info, self._allowed)
