"""Denies Bindings of pods that have a BindRequest. Alpha; behind the feature gate BindingGuard.

Admission of Bindings only. A pod that another component binds while its BindRequest is being processed runs without
its assigned device, or holds two. Without this plugin Bowline detects that and reports BoundElsewhere; this plugin
prevents it. The chart exempts the reconciler's own Bindings from the hook, so binding never depends on the webhook.
The hook fails open, because the Bindings of every other scheduler pass through it.
"""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field

from shared.api import names
from shared.api.field_error import format_value
from shared.plugin import AdmissionInfo, FieldError, ObjectKey, Plugin, PluginConfig, Settings

UserName = Annotated[str, Field(min_length=1)]


class BindingGuardConfig(PluginConfig):
    """``args`` of the plugin."""

    allowed_users: Annotated[tuple[UserName, ...], Field(alias="allowedUsers")] = ()
    """Who may bind pods with a BindRequest besides Bowline's reconciler: whole user names, such as
    system:serviceaccount:kai-scheduler:binder. No patterns and no groups: a name that is nearly right is not."""


class BindingGuard(Plugin):
    """Denies Bindings of guarded pods by users that are not in ``allowedUsers``."""

    name = "binding_guard"
    config_model = BindingGuardConfig
    gate = "BindingGuard"

    def __init__(self, args: Any, settings: Settings) -> None:
        super().__init__(args, settings)
        self._allowed = frozenset(args.allowed_users)

    def validate_binding(self, pod: ObjectKey, info: AdmissionInfo) -> Iterable[FieldError]:
        """Yield an error if the user may not bind the pod. Requests missing in the watch cache guard nothing."""
        if pod not in info.pods_with_bindrequest or info.user in self._allowed:
            return
        message = (
            f"pod {pod} has a {names.KIND} and is bound by Bowline's reconciler, not by user "
            f"{format_value(info.user)}; leave it to the {names.KIND}, delete that one first, or list the user in "
            "allowedUsers of plugin binding_guard"
        )
        yield FieldError("binding_guard/user", "metadata.name", pod.name, message)
