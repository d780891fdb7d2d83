"""Arguments of binding_guard."""

from typing import Annotated

from pydantic import Field

from shared.framework.plugin import PluginConfig

UserName = Annotated[str, Field(min_length=1)]


class BindingGuardConfig(PluginConfig):
    """``args`` of the plugin."""

    allowed_users: Annotated[tuple[UserName, ...], Field(alias="allowedUsers")] = ()
    """Who may bind pods with a BindRequest besides Bowline's reconciler: whole user names, such as
    system:serviceaccount:kai-scheduler:binder. No patterns and no groups: a name that is nearly right is not."""
