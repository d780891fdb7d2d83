"""Optional cluster facts beside the object under review; only the enabled sources are watched.

Neither serving nor readiness depends on them: a rule that lacks its fact is not applied.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shared.api.names import FIELD_MANAGER_WEBHOOK
from shared.framework.plugin import Plugin, overrides
from shared.kube.client import ClientOptions, KubeClient
from shared.kube.config import wait_for_access
from shared.kube.metrics import KubeMetrics
from shared.runtime.tasks import ShutdownSignal
from webhook.inventory import GpuInventory
from webhook.requested import PodsWithBindRequest
from webhook.review import ClusterInfo


@dataclass(frozen=True, slots=True)
class EnabledSources:
    """The enabled sources."""

    inventory: bool
    requested: bool

    def __bool__(self) -> bool:
        return self.inventory or self.requested


def wanted_facts(inventory: bool, plugins: Sequence[Plugin]) -> EnabledSources:
    """Return the enabled sources: the inventory by command line, the pods with a BindRequest if a plugin needs
    them.
    """
    return EnabledSources(inventory, any(overrides(plugin, "validate_binding") for plugin in plugins))


class ClusterInfoWatcher:
    """Watches the enabled sources and provides their current state."""

    def __init__(self, wanted: EnabledSources, kubeconfig: Path | None, metrics: KubeMetrics) -> None:
        self.wanted = wanted
        self._kubeconfig = kubeconfig
        self._metrics = metrics
        self._inventory: GpuInventory | None = None
        self._requested: PodsWithBindRequest | None = None

    def facts(self) -> ClusterInfo:
        """Return the current facts. Cheap: called for every review."""
        return ClusterInfo(
            self._inventory.current() if self._inventory is not None else None,
            self._requested.current() if self._requested is not None else frozenset(),
        )

    async def run(self, stop: ShutdownSignal) -> None:
        """Watch until cancelled, or until ``stop`` while there is no access to an API server."""
        access = await wait_for_access(self._kubeconfig, stop, lambda _: None)
        if access is None:
            return
        options = ClientOptions(name=FIELD_MANAGER_WEBHOOK, metrics=self._metrics)
        async with KubeClient(access, options) as client, asyncio.TaskGroup() as tasks:
            if self.wanted.inventory:
                self._inventory = GpuInventory(client)
                tasks.create_task(self._inventory.reflector.run(), name="reflector nodes")
            if self.wanted.requested:
                self._requested = PodsWithBindRequest(client)
                tasks.create_task(self._requested.reflector.run(), name="reflector bindrequests")
