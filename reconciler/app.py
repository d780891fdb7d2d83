"""The reconciler process: options to running parts, and the order in which they start and stop.

Start: probes first, so that a kubelet sees a live process whatever else is missing; credentials and the API server
are retried until they are there; then watches, then leadership, then work. Stop is the table in ``_work``.
"""

import asyncio
import logging
import socket
from datetime import timedelta

from prometheus_client import CollectorRegistry

from reconciler.controller import Controller
from reconciler.endings import Endings
from reconciler.leading import Work, end_of, first_of, lead
from reconciler.metrics import ReconcilerMetrics
from reconciler.observing import PluginObserver
from reconciler.options import Options, parse_options
from reconciler.reconciler import Reconciler, Tools
from reconciler.stores import Stores
from reconciler.writer import Writer
from shared.api import names
from shared.api.meta import ObjectKey
from shared.framework.binding.lifecycle import PluginLifecycle
from shared.framework.binding.runner import Runner, order_by_point
from shared.framework.config import ConfigurationError, Settings
from shared.framework.gates import GATES
from shared.framework.options import load_settings, refuse_to_start
from shared.framework.plugin import Plugin
from shared.framework.registry import Registry
from shared.kube.calls import WriteClass
from shared.kube.client import ClientOptions, KubeClient
from shared.kube.config import ClusterAccess, load_access
from shared.kube.errors import CredentialsError
from shared.kube.events import EventRecorder
from shared.kube.lease import LeaseTimings
from shared.plugins.catalog import BUILTINS
from shared.runtime.backoff import Backoff
from shared.runtime.clock import SystemClock
from shared.runtime.limiter import Limiter
from shared.runtime.logging import configure_logging
from shared.runtime.metrics import new_registry
from shared.runtime.probes import ProbeServer
from shared.runtime.tasks import Stop, StopStep, Supervisor, run_process, stop_in_order

log = logging.getLogger(__name__)

PROGRAM = "reconciler"
# The controller drains for 25 s; plugins stop after it.
WORK = timedelta(seconds=40)
MOMENT = timedelta(seconds=3)


def main() -> None:
    """Run the process; exits with 2 if the command line or the configuration is wrong."""
    options = parse_options()
    common = options.common
    try:
        settings = load_settings(common.config, common.feature_gates)
        plugins = Registry(BUILTINS, GATES).build(settings)
    except (ConfigurationError, OSError, UnicodeError) as error:
        refuse_to_start(PROGRAM, common.config, error)
    configure_logging(common.log_format, common.log_level)
    run_process(lambda stop: Process(options, settings, plugins).run(stop))


class Process:
    """The parts of one reconciler process."""

    def __init__(self, options: Options, settings: Settings, plugins: tuple[Plugin, ...]) -> None:
        self._options = options
        self._settings = settings
        self._plugins = plugins
        self._registry: CollectorRegistry = new_registry()
        self._metrics = ReconcilerMetrics(self._registry)
        self._clock = SystemClock()
        self._missing: str | None = "not connected to the API server yet"
        self._stores: Stores | None = None

    async def run(self, stop: Stop) -> None:
        """Run until ``stop``, then stop in order."""
        probes = ProbeServer(self._options.common.metrics_listen, self._registry, {"caches": self._not_ready})
        await probes.start()
        try:
            access = await self._access(stop)
            if access is not None:
                async with KubeClient(access, self._client_options()) as client:
                    await self._work(client, stop)
        finally:
            await probes.stop()

    async def _work(self, client: KubeClient, stop: Stop) -> None:
        plugins = PluginLifecycle(self._plugins, client, self._settings, self._clock)
        await plugins.setup()
        log.info("plugins are set up", extra={"order": order_by_point(self._plugins)})
        recorder = EventRecorder(client, socket.gethostname())
        controller = Controller(self._settings.binding.workers, self._metrics)
        stores = self._stores = Stores(client, controller.on_change, controller.on_request_gone)
        reflectors = {**stores.reflectors, **plugins.reflectors(controller.on_change)}
        runner = Runner(self._plugins, PluginObserver(self._metrics))
        ending = Endings(runner, Writer(client), recorder.record, self._metrics, self._clock)
        reconciler = Reconciler(Tools(client, stores, runner, ending, self._settings, self._clock))
        self._missing = None
        async with Supervisor(stop) as tasks:
            watching = [tasks.start(f"reflector {name}", reflector.run()) for name, reflector in reflectors.items()]
            events = tasks.start("events", recorder.run())
            work = Work(controller, reconciler, plugins, stores, self._metrics)
            leading = tasks.start("leading", lead(client, self._lease, self._timings, work, stop))
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

    @property
    def _lease(self) -> ObjectKey:
        return ObjectKey(self._options.lease_namespace, self._options.lease_name)

    @property
    def _timings(self) -> LeaseTimings:
        election = self._settings.leader_election
        return LeaseTimings(election.lease_duration, election.renew_deadline, election.retry_period)

    async def _access(self, stop: Stop) -> ClusterAccess | None:
        """Load credentials, again and again until they are there; None if the process is told to stop before."""
        backoff: Backoff[str] = Backoff(timedelta(seconds=1), timedelta(seconds=30))
        while not stop.is_set():
            try:
                return await load_access(self._options.common.kubeconfig)
            except CredentialsError as error:
                self._missing = str(error)
                delay = backoff.failed("access", timedelta(seconds=0.5))
                log.warning("no credentials yet", extra={"error": str(error), "again_s": delay.total_seconds()})
                await first_of(stop.wait(), asyncio.sleep(delay.total_seconds()))
        return None

    def _client_options(self) -> ClientOptions:
        limits = self._settings.client
        qps = {
            WriteClass.BIND: limits.bind_qps,
            WriteClass.WRITE: limits.write_qps,
            WriteClass.STATUS: limits.status_qps,
        }
        return ClientOptions(
            name=names.FIELD_MANAGER_RECONCILER,
            limiters={kind: Limiter(rate, burst=max(1, int(rate))) for kind, rate in qps.items() if rate},
            clock=self._clock,
        )

    def _not_ready(self) -> str | None:
        if self._missing is not None or self._stores is None:
            return self._missing or "starting"
        for name, reflector in self._stores.reflectors.items():
            if not reflector.synced.is_set():
                return f"{name}: {reflector.problem or 'not listed yet'}"
        return None
