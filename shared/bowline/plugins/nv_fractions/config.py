"""Arguments of nv_fractions."""

from typing import Annotated

from pydantic import Field

from bowline.framework.plugin import PluginConfig


class NvFractionsConfig(PluginConfig):
    """``args`` of the plugin."""

    trusted_users: Annotated[tuple[str, ...], Field(alias="trustedUsers")] = ()
    """Users that may write device lists and compute portions of pods themselves, such as another binder during a
    migration. Bowline's reconciler is none of them: it writes these annotations with the Binding."""
