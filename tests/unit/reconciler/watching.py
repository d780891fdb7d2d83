"""Common parts of tests of observing: an Observation with its own clock, and a context for plugins."""

import asyncio

from prometheus_client import CollectorRegistry

from bowline.framework.binding.calls import PluginCaller
from bowline.framework.config import Settings
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.plugin import PluginConfig
from bowline.framework.interface.status import Status
from bowline.testing.builders import bind_request, pod, stored
from bowline.testing.clock import SteppedClock
from bowline.testing.handles import context_for
from bowline_reconciler.drive.progress import points_of
from bowline_reconciler.drive.state import RequestStates
from bowline_reconciler.observe import Observation, ReconcilerMetrics

ACTING = {
    "pre_bind": ("volumes", "devices"),
    "bind": ("binder",),
    "post_bind": ("devices",),
    "rollback": ("devices",),
}


class Watched:
    """An Observation with its clock, its registry, and what it is used with."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.registry = CollectorRegistry()
        metrics = ReconcilerMetrics(self.registry, ACTING)
        self.observation = Observation(metrics, self.clock)
        self.caller = PluginCaller(self.observation, self.clock.monotonic, metrics.calls)
        self.states = RequestStates(self.clock.monotonic)
        states, caller = self.states, self.caller
        metrics.count(
            lambda: points_of(states, caller.in_progress), lambda: states.waits("bowline"), lambda: states.sizes
        )

    def value(self, name: str, **labels: str) -> float | None:
        """The value of one series; None if it does not exist."""
        return self.registry.get_sample_value(name, labels)


class Stuck(BindingPlugin):
    """Hangs in pre_bind until it is released."""

    name = "devices"

    def __init__(self) -> None:
        super().__init__(PluginConfig(), Settings())
        self.entered, self.go = asyncio.Event(), asyncio.Event()

    async def pre_bind(self, ctx: BindContext) -> Status:
        self.entered.set()
        await self.go.wait()
        return Status.ok()


def context(name: str = "train") -> BindContext:
    """A context of an attempt without calls of the API server."""
    return context_for(stored(bind_request(name)), stored(pod(name)))
