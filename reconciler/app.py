"""The reconciler process: options to running parts, and the order in which they start and stop.

Start: probes first, so that a kubelet sees a live process whatever else is missing; credentials and the API server
are retried until they are there; then watches, then leadership, then work. Stop is the table in ``_work``.
"""

import logging
from datetime import timedelta

from prometheus_client import CollectorRegistry

from reconciler.debug import WorkPages, configuration_pages
from reconciler.informers import Stores
from reconciler.leader import Work, lead
from reconciler.observe.metrics import ReconcilerMetrics
from reconciler.options import Options, parse_options
from reconciler.wiring import assemble
from shared.api import names
from shared.api.meta import ObjectKey
from shared.framework.binding.runner import order_by_point
from shared.framework.config import Client, Settings
from shared.framework.gates import GATES
from shared.framework.options import start_with
from shared.framework.plugin import Plugin
from shared.framework.registry import Registry
from shared.kube.calls import WriteClass
from shared.kube.client import ClientOptions, KubeClient
from shared.kube.config import wait_for_access
from shared.kube.lease import LeaseTimings
from shared.kube.metrics import KubeMetrics
from shared.plugins.catalog import BUILTINS
from shared.runtime.clock import SystemClock
from shared.runtime.debugpages import DebugPages
from shared.runtime.garbage import spare_what_stays
from shared.runtime.limiter import Limiter
from shared.runtime.metrics import new_registry
from shared.runtime.probes import ProbeServer
from shared.runtime.tasks import Stop, StopStep, Supervisor, end_of, first_of, run_process, stop_in_order
from shared.runtime.tracing import configured_tracer

log = logging.getLogger(__name__)

PROGRAM = "reconciler"
# The controller drains for 25 s; plugins stop after it.
WORK = timedelta(seconds=40)
MOMENT = timedelta(seconds=3)


def main() -> None:
    """Run the process; exits with 2 if the command line or the configuration is wrong."""
    options = parse_options()
    settings, plugins = start_with(PROGRAM, options.common, Registry(BUILTINS, GATES))
    run_process(lambda stop: Process(options, settings, plugins).run(stop))


class Process:
    """The parts of one reconciler process."""

    def __init__(self, options: Options, settings: Settings, plugins: tuple[Plugin, ...]) -> None:
        self._options = options
        self._settings = settings
        self._plugins = plugins
        self._registry: CollectorRegistry = new_registry()
        self._clock = SystemClock()
        self._metrics = ReconcilerMetrics(self._registry, order_by_point(plugins))
        self._tracer = configured_tracer("bowline-reconciler")
        self._pages = DebugPages()
        self._pages.add(*configuration_pages(settings, options, plugins, self._metrics.plugin_errors))
        self._missing: str | None = "not connected to the API server yet"
        self._stores: Stores | None = None

    async def run(self, stop: Stop) -> None:
        """Run until ``stop``, then stop in order."""
        checks = {"caches": self._not_ready}
        probes = ProbeServer(self._options.common.metrics_listen, self._registry, checks, self._pages)
        await probes.start()
        try:
            access = await wait_for_access(self._options.common.kubeconfig, stop, self._say_missing)
            if access is not None:
                async with KubeClient(access, self._client_options()) as client:
                    await self._work(client, stop)
        finally:
            await probes.stop()
            if self._tracer is not None:
                await self._tracer.close()

    async def _work(self, client: KubeClient, stop: Stop) -> None:
        parts = await assemble(client, self._plugins, self._settings, self._metrics, self._options.shard)
        log.info("plugins are set up", extra={"order": order_by_point(self._plugins)})
        parts.observation.tracer = self._tracer
        self._pages.add(*WorkPages(parts, self._clock).pages())
        self._stores, recorder = parts.stores, parts.recorder
        self._missing = None
        async with Supervisor(stop) as tasks:
            watching = [
                tasks.start(f"reflector {name}", reflector.run()) for name, reflector in parts.reflectors.items()
            ]
            events = tasks.start("events", recorder.run())
            tasks.start("overdue", parts.observation.overdue.run())
            leading = tasks.start("leading", self._lead(client, parts.work, stop))
            await stop.wait()
            log.info("stopping", extra={"reason": stop.reason})
            self._missing = "stopping"
            await stop_in_order(
                [
                    StopStep("work", "past the point of no return is finished", lambda: end_of(leading), WORK),
                    StopStep("events", "they speak of what has just been finished", recorder.flush, MOMENT),
                    StopStep("watches", "nobody listens", lambda: tasks.cancel(*watching, events), MOMENT),
                ]
            )

    async def _lead(self, client: KubeClient, work: Work, stop: Stop) -> None:
        await first_of(work.stores.listed(), stop.wait())
        spare_what_stays()
        await lead(client, self._lease, self._timings, work, stop)

    @property
    def _lease(self) -> ObjectKey:
        return ObjectKey(self._options.lease_namespace, self._options.lease_name)

    @property
    def _timings(self) -> LeaseTimings:
        election = self._settings.leader_election
        return LeaseTimings(election.lease_duration, election.renew_deadline, election.retry_period)

    def _client_options(self) -> ClientOptions:
        return ClientOptions(
            name=names.FIELD_MANAGER_RECONCILER,
            limiters=write_limiters(self._settings.client),
            metrics=KubeMetrics(self._registry),
            clock=self._clock,
        )

    def _say_missing(self, what: str) -> None:
        self._missing = what

    def _not_ready(self) -> str | None:
        if self._missing is not None or self._stores is None:
            return self._missing or "starting"
        for name, reflector in self._stores.reflectors.items():
            if not reflector.synced.is_set():
                return f"{name}: {reflector.problem or 'not listed yet'}"
        return None


def write_limiters(limits: Client) -> dict[WriteClass, Limiter]:
    """Return a limiter for each kind of write that is limited; what was saved up within a second may go at once."""
    qps = {
        WriteClass.BIND: limits.bind_qps,
        WriteClass.WRITE: limits.write_qps,
        WriteClass.STATUS: limits.status_qps,
    }
    return {kind: Limiter(rate, burst=max(1, int(rate))) for kind, rate in qps.items() if rate}
