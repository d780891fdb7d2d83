"""The reconciler process: from options to running components, and the order in which they start and stop.

Start: the probe server first, so that the kubelet sees a live process whatever is missing; loading the credentials
and connecting to the API server are retried until they succeed; then watches, leader election, and the controller.
Stop: the table in ``process``.
"""

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from bowline.api import names
from bowline.api.meta import ObjectKey
from bowline.framework.binding.calls import PluginCall
from bowline.framework.binding.runner import order_by_point
from bowline.framework.config import LeaderElection, Settings
from bowline.framework.interface.plugin import Plugin
from bowline.framework.options import load_configuration
from bowline.framework.registry import Registry
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import wait_for_access
from bowline.kube.lease import LeaseTimings, new_identity
from bowline.kube.metrics import KubeMetrics
from bowline.kube.reflector import Reflector
from bowline.plugins.catalog import BUILTINS
from bowline.runtime.metrics import new_registry
from bowline.runtime.probes import Check, DebugServer, ProbeServer
from bowline.runtime.tasks import RootTasks, ShutdownSignal, freeze_startup_objects, run_process
from bowline.runtime.watchdog import EventLoopWatchdog
from bowline.runtime.workqueue import CAPACITY
from bowline_reconciler.debug import debug_content
from bowline_reconciler.observe import Observation, ReconcilerMetrics
from bowline_reconciler.options import Options, parse_options
from bowline_reconciler.process import Contact, RunningComponents
from bowline_reconciler.term.leader import Leadership, new_watchdog
from bowline_reconciler.term.uninstall import Uninstall
from bowline_reconciler.term.wiring import Components, build

log = logging.getLogger(__name__)

PROGRAM = "reconciler"


def main() -> None:
    """Run the process; exits with 2 if the command line or the configuration is invalid."""
    options = parse_options()
    settings, plugins = load_configuration(PROGRAM, options.common, Registry(BUILTINS))
    run_process(partial(run, options, settings, plugins))


async def run(options: Options, settings: Settings, plugins: Sequence[Plugin], stop: ShutdownSignal) -> None:
    """Run until ``stop``, then shut down in order. Raises PluginError if a plugin cannot be set up."""
    registry = new_registry()
    metrics = ReconcilerMetrics(registry, order_by_point(plugins))
    checks: dict[str, Check] = {}
    _set_not_ready(checks, "not connected to the API server yet")
    probes = ProbeServer(options.common.metrics_listen, registry, checks, "reconciler")
    await probes.start()
    try:
        access = await wait_for_access(options.common.api_server, stop, partial(_set_not_ready, checks))
        if access is not None:
            client_options = ClientOptions(
                name=names.FIELD_MANAGER_RECONCILER,
                connections=connections(settings.binding.workers),
                metrics=KubeMetrics(registry),
            )
            async with KubeClient(access, client_options) as client:
                observation = Observation(metrics, client.clock)
                parts = await build(client, plugins, settings, observation, uninstalling=bool(options.uninstall))
                log.info("plugins are set up", extra={"order": order_by_point(plugins)})
                lease = ObjectKey(options.lease_namespace, options.lease_name)
                leadership = Leadership(lease, new_identity)
                watchdog = new_watchdog(parts, access, leadership)
                reservations = settings.gpu_sharing.reservation_namespace
                release = ObjectKey(options.lease_namespace, options.uninstall)
                uninstall = Uninstall(client, release, reservations) if options.uninstall else None
                debug = DebugServer(options.debug_listen, lambda: debug_content(parts, leadership.leader))
                await debug.start()
                try:
                    await _work(parts, leadership, settings.leader_election, checks, watchdog, uninstall, stop)
                finally:
                    await debug.stop()
    finally:
        await probes.stop()


async def _work(
    parts: Components,
    leadership: Leadership,
    election: LeaderElection,
    checks: dict[str, Check],
    watchdog: EventLoopWatchdog[PluginCall],
    uninstall: Uninstall | None,
    stop: ShutdownSignal,
) -> None:
    timings = LeaseTimings(election.lease_duration, election.renew_deadline, election.retry_period)
    client = parts.client
    contact = Contact(lambda: client.answers, lambda: problem_of(parts.reflectors))
    checks["caches"] = parts.unsynced
    checks["contact"] = contact.missing
    async with RootTasks(stop) as tasks:
        running = RunningComponents(tasks, parts, leadership, timings, stop, freeze_startup_objects)
        tasks.start("watchdog", watchdog.run())
        tasks.start("contact", contact.run())
        if uninstall is not None:
            tasks.start("uninstall", uninstall.run())
        await stop.wait()
        log.info("stopping", extra={"reason": stop.reason})
        _set_not_ready(checks, "stopping")
        await running.shut_down()


def _set_not_ready(checks: dict[str, Check], why: str) -> None:
    checks["caches"] = lambda: why


def problem_of(reflectors: Mapping[str, Reflector]) -> str | None:
    """Return the error of the first watch that is not optional; None if there is none."""
    required = (reflector for reflector in reflectors.values() if not reflector.selection.is_optional)
    return next((reflector.last_error for reflector in required if reflector.last_error), None)


def connections(workers: int) -> int:
    """Return how many calls may be in flight: the plugins of one attempt write concurrently, two on average.

    Hanging calls keep their connections, so the slow reconciles count as well.
    """
    return max(128, 2 * CAPACITY * workers)
