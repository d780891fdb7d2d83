"""The reconciler process: from options to running components, and the order in which they start and stop.

Start: the probe server first, so that the kubelet sees a live process whatever is missing; loading the credentials
and connecting to the API server are retried until they succeed; then watches, leader election, and the controller.
Stop: the table in ``_work``.
"""

import logging
from collections.abc import Mapping
from datetime import timedelta

from prometheus_client import CollectorRegistry

from reconciler.contact import Contact
from reconciler.debug import WorkPages, configuration_pages
from reconciler.leader import lead
from reconciler.observe.metrics import ReconcilerMetrics
from reconciler.options import Options, parse_options
from reconciler.wiring import Components, assemble
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
from shared.kube.reflector import Reflector
from shared.plugins.catalog import BUILTINS
from shared.runtime.clock import SystemClock
from shared.runtime.debugpages import DebugPages
from shared.runtime.gc import freeze_startup_objects
from shared.runtime.limiter import Limiter
from shared.runtime.metrics import new_registry
from shared.runtime.probes import ProbeServer
from shared.runtime.tasks import RootTasks, ShutdownSignal, ShutdownStep, run_process, shut_down, wait_done
from shared.runtime.tracing import configured_tracer

log = logging.getLogger(__name__)

PROGRAM = "reconciler"
# The controller drains for up to 25 s; the plugins stop after that.
WORK = timedelta(seconds=40)
MOMENT = timedelta(seconds=3)


def main() -> None:
    """Run the process; exits with 2 if the command line or the configuration is invalid."""
    options = parse_options()
    settings, plugins = start_with(PROGRAM, options.common, Registry(BUILTINS, GATES))
    run_process(lambda stop: Process(options, settings, plugins).run(stop))


class Process:
    """The components of one reconciler process."""

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
        self._parts: Components | None = None
        self._contact: Contact | None = None

    async def run(self, stop: ShutdownSignal) -> None:
        """Run until ``stop``, then shut down in order."""
        checks = {"caches": self._not_ready, "contact": self._no_contact}
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

    async def _work(self, client: KubeClient, stop: ShutdownSignal) -> None:
        parts = await assemble(client, self._plugins, self._settings, self._metrics, self._options.shard)
        log.info("plugins are set up", extra={"order": order_by_point(self._plugins)})
        parts.observation.tracer = self._tracer
        self._pages.add(*WorkPages(parts, self._clock).pages())
        self._parts, recorder = parts, parts.recorder
        self._contact = contact = Contact(lambda: client.answers, lambda: problem_of(parts.reflectors))
        self._missing = None
        async with RootTasks(stop) as tasks:
            watching = [
                tasks.start(f"reflector {name}", reflector.run()) for name, reflector in parts.reflectors.items()
            ]
            events = tasks.start("events", recorder.run())
            tasks.start("overdue", parts.observation.overdue.run())
            tasks.start("contact", contact.run())
            leading = tasks.start(
                "leading", lead(self._lease, self._timings, parts.work, stop, freeze_startup_objects)
            )
            await stop.wait()
            log.info("stopping", extra={"reason": stop.reason})
            self._missing = "stopping"
            await shut_down(
                [
                    ShutdownStep("work", "past the point of no return is finished", lambda: wait_done(leading), WORK),
                    ShutdownStep("events", "they report what has just been completed", recorder.flush, MOMENT),
                    ShutdownStep(
                        "watches", "nothing processes their events", lambda: tasks.cancel(*watching, events), MOMENT
                    ),
                    ShutdownStep("plugins", "nothing calls them now", parts.work.plugins.teardown, MOMENT),
                ]
            )

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
            connections=connections(self._settings.binding.workers),
            limiters=write_limiters(self._settings.client),
            metrics=KubeMetrics(self._registry),
            clock=self._clock,
        )

    def _say_missing(self, what: str) -> None:
        self._missing = what

    def _not_ready(self) -> str | None:
        if self._missing is not None or self._parts is None:
            return self._missing or "starting"
        return unsynced(self._parts) or self._parts.work.shards.conflict

    def _no_contact(self) -> str | None:
        return self._contact.missing() if self._contact is not None else None


def unsynced(parts: Components) -> str | None:
    """Return which watch has not been listed yet, and why; a plugin's watch with the plugin's name. None if all have.

    A plugin's watch of a resource that the API server does not serve counts as listed: there is nothing to list.
    """
    own = parts.stores.reflectors
    for name, reflector in parts.reflectors.items():
        if not (reflector.synced if name in own else reflector.known).is_set():
            what = name if name in own else f"plugin {name.partition('/')[0]}, watch of {reflector.selection}"
            return f"{what}: {reflector.last_error or 'not listed yet'}"
    return None


def problem_of(reflectors: Mapping[str, Reflector]) -> str | None:
    """Return the first watch's error; None if there is none."""
    return next((reflector.last_error for reflector in reflectors.values() if reflector.last_error), None)


def connections(workers: int) -> int:
    """Return how many calls may be in flight: the plugins of one attempt write concurrently, two on average."""
    return max(128, 2 * workers)


def write_limiters(limits: Client) -> dict[WriteClass, Limiter]:
    """Return a limiter for each limited kind of write; the burst is one second's quota."""
    qps = {
        WriteClass.BIND: limits.bind_qps,
        WriteClass.WRITE: limits.write_qps,
        WriteClass.STATUS: limits.status_qps,
    }
    return {kind: Limiter(rate, burst=max(1, int(rate))) for kind, rate in qps.items() if rate}
