"""The plugin's own arguments."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from shared.framework.plugin import PluginConfig


class VolumeBindingConfig(PluginConfig):
    """``args`` of volume_binding."""

    bind_timeout_seconds: Annotated[int, Field(alias="bindTimeoutSeconds", ge=0, le=86400)] = 0
    """How long a request may wait for volumes that are being bound or made, before the decision is returned to the
    scheduler; 0 is ``binding.waitTimeout``. KAI-Scheduler's plugin has the same argument."""

    @property
    def bind_timeout(self) -> timedelta | None:
        """The same as a duration; None where ``binding.waitTimeout`` applies."""
        return timedelta(seconds=self.bind_timeout_seconds) or None
