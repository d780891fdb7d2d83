"""One reconciler process: the components that the product's ``app`` starts, on a simulated network."""

import logging
from collections.abc import Mapping
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from prometheus_client import CollectorRegistry

from bowline.api import names
from bowline.api.meta import ObjectKey
from bowline.framework.binding.runner import order_by_point
from bowline.framework.config import Binding, GpuSharingSettings, PluginEntry, Settings
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ApiServer, load_access
from bowline.kube.lease import LeaseTimings, StorageRestoredError
from bowline.plugins.catalog import build_plugins
from bowline.runtime.tasks import RootTasks, ShutdownSignal
from bowline_reconciler.observe import Observation, ReconcilerMetrics
from bowline_reconciler.process import RunningComponents
from bowline_reconciler.term.leader import Leadership
from bowline_reconciler.term.wiring import Components, build
from tests.simulation.ends import CHECK_TIMEOUT_S
from tests.simulation.loop import Process, State, VirtualLoop
from tests.simulation.network import Network, SimulatedTransport
from tests.simulation.server import EPOCH

log = logging.getLogger(__name__)

LEASE = ObjectKey("bowline", "bowline-reconciler")
TIMINGS = LeaseTimings()


_QUOTA = {"name": "quota", "namespaces": ["*"], "timeout": f"{CHECK_TIMEOUT_S}s"}
_CHECKS = PluginEntry(name="checks", args={"checks": [_QUOTA]})


class SimulatedClock:
    """A process's clocks: virtual time. ``skew`` is the error of the wall clock, and may change."""

    def __init__(self, loop: VirtualLoop, skew: timedelta) -> None:
        self._loop = loop
        self.skew = skew

    def now(self) -> datetime:
        """Return the wall clock's time."""
        return EPOCH + timedelta(seconds=self._loop.time()) + self.skew

    def monotonic(self) -> float:
        """Return the monotonic clock's time."""
        return self._loop.time() + 5000.0


def settings_of(options: Mapping[str, Any]) -> Settings:
    """Return the configuration: every plugin that binds, gangs, and short timeouts."""
    return Settings(
        binding=Binding(
            workers=options.get("workers", 4),
            wait_timeout=timedelta(seconds=options.get("wait_timeout", 120)),
            backoff_limit=options.get("backoff_limit", 3),
        ),
        gpu_sharing=GpuSharingSettings(runtime_class_name=""),
        plugins=(PluginEntry(name="node_fit"), *((_CHECKS,) if options.get("checks") else ())),
        feature_gates={"GangBinding": options.get("gangs", True)},
    )


class ReconcilerProcess(Process):
    """A process from start to death. ``identity``: its pod's name and UID."""

    def __init__(
        self, name: str, identity: str, network: Network, settings: Settings, skew: timedelta, random: Random
    ) -> None:
        super().__init__(name)
        self.identity = identity
        self.clock = SimulatedClock(network.loop, skew)
        self.parts: Components | None = None
        self.stop = ShutdownSignal()
        self.has_ended = False
        self.failure: BaseException | None = None
        self._network = network
        self._settings = settings
        self._random = random
        network.loop.create_task(self._run(), name=name, context=self.context)

    @property
    def is_alive(self) -> bool:
        """Whether the process has neither ended nor died."""
        return self.state is not State.DEAD and not self.has_ended

    async def _run(self) -> None:
        try:
            await self._work()
        except* StorageRestoredError:
            # It ends on purpose; its container is started again.
            self._network.crash(self, "etcd was restored")
        except* Exception as errors:
            log.exception("process failed")
            self.failure = errors
        self.has_ended = True

    async def _work(self) -> None:
        settings = self._settings
        options = ClientOptions(
            name=names.FIELD_MANAGER_RECONCILER,
            clock=self.clock,
            random=self._random,
            transport=lambda access, limits: SimulatedTransport(access, limits, self._network, self),
        )
        async with KubeClient(load_access(ApiServer("http://simulated"), clock=self.clock), options) as client:
            plugins = build_plugins(settings)
            metrics = ReconcilerMetrics(CollectorRegistry(), order_by_point(plugins))
            parts = self.parts = await build(client, plugins, settings, Observation(metrics, client.clock))
            leadership = Leadership(LEASE, self._new_identity)
            async with RootTasks(self.stop) as tasks:
                running = RunningComponents(tasks, parts, leadership, TIMINGS, self.stop)
                await self.stop.wait()
                await running.shut_down()

    def _new_identity(self) -> str:
        return f"{self.identity}_{UUID(int=self._random.getrandbits(128), version=4)}"

    def sizes(self) -> dict[str, int]:
        """Return the sizes of everything in memory that belongs to a request or an object."""
        if self.parts is None:
            return {}
        of_plugins = self.parts.plugins.sizes.items()
        return {
            **self.parts.memory.sizes,
            **{f"{plugin} {state}": size for plugin, sizes in of_plugins for state, size in sizes.items()},
        }
