"""Wait limits of plugins, and the argument that sets one: shared by the plugins that bind volumes and devices."""

from datetime import timedelta
from typing import Annotated

from pydantic import Field

from bowline.framework.interface.plugin import PluginConfig

# How long a request waits for a prerequisite that its scheduler could have waited for: an object that does not exist
# yet, or that is prepared independently of the pod. Enough for the order of `kubectl apply` and for a controller
# under load; for longer, the capacity of the node is not reserved for a decision that may change.
PREREQUISITE = timedelta(seconds=30)


class BindTimeoutConfig(PluginConfig):
    """``args`` of a plugin that waits for what its own decision has started."""

    bind_timeout_seconds: Annotated[int, Field(alias="bindTimeoutSeconds", ge=0, le=86400)] = 0
    """How long a request may wait before the decision is returned to the scheduler; 0 is ``binding.waitTimeout``.
    KAI-Scheduler's plugins have the same argument."""

    @property
    def bind_timeout(self) -> timedelta | None:
        """The timeout as a duration; None where ``binding.waitTimeout`` applies."""
        return timedelta(seconds=self.bind_timeout_seconds) or None
