"""How a share sees its device in this cluster: its RuntimeClasses, and the mode of NVIDIA's GPU operator, watched.

Neither serving nor readiness depends on it. Each is unknown without permission and before the first list, and classes
are while their watch is interrupted: rules that need it are not applied then.
"""

import asyncio
from typing import Any

from bowline.api.gpu_operator import UNKNOWN, GpuRuntime, operator_mode, transform_policy
from bowline.api.meta import Object, identity_of
from bowline.kube.client import KubeClient
from bowline.kube.reflector import Reflector
from bowline.kube.resources import CLUSTERPOLICIES, RUNTIMECLASSES, Selection


class RuntimeWatcher:
    """Watches while the process runs, and provides what is known."""

    def __init__(self) -> None:
        self._watches: tuple[Reflector, Reflector] | None = None

    def current(self) -> GpuRuntime:
        """Return what is known. Cheap: called for every review."""
        if self._watches is None:
            return UNKNOWN
        classes, policies = self._watches
        names = frozenset(key.name for key in classes.store) if classes.last_error is None else None
        return GpuRuntime(operator_mode(policies.store.values()), names)

    async def run(self, client: KubeClient) -> None:
        """Watch until cancelled."""
        names = Selection(RUNTIMECLASSES.as_metadata(), is_optional=True)
        classes = Reflector(client, names, transform=transform_class)
        policies = Reflector(client, Selection(CLUSTERPOLICIES, is_optional=True), transform=transform_policy)
        self._watches = classes, policies
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(classes.run())
            tasks.create_task(policies.run())


def transform_class(runtime_class: dict[str, Any]) -> Object:
    """Keep the identity of a RuntimeClass."""
    return {"metadata": identity_of(runtime_class)}
