"""The webhook process: its components, and the order in which they start and stop.

The listener starts immediately; with a self-signed certificate the process becomes ready when API servers trust its
CA. What needs an API server shares one client; with certificates from files, no plugin ``gpu_sharing`` and
``admission.repeatBackoff: 0s``, nothing does.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

from bowline.api.names import FIELD_MANAGER_WEBHOOK
from bowline.framework.admission import AdmissionChain
from bowline.framework.config import Settings
from bowline.framework.interface.plugin import Plugin
from bowline.framework.options import load_configuration
from bowline.framework.registry import Registry
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ClusterAccess, wait_for_access
from bowline.kube.metrics import KubeMetrics
from bowline.plugins.catalog import BUILTINS
from bowline.plugins.reads import unread_annotations
from bowline.runtime.clock import SystemClock
from bowline.runtime.metrics import new_registry
from bowline.runtime.probes import Check, ProbeServer
from bowline.runtime.tasks import (
    RootTasks,
    ShutdownSignal,
    ShutdownStep,
    freeze_startup_objects,
    run_process,
    shut_down,
)
from bowline.runtime.watchdog import EventLoopWatchdog
from bowline_webhook.gpu_runtime import RuntimeWatcher
from bowline_webhook.metrics import WebhookMetrics
from bowline_webhook.options import Options, parse_options
from bowline_webhook.repeats import RepeatGuard
from bowline_webhook.server import AdmissionServer
from bowline_webhook.tls.ca import service_names
from bowline_webhook.tls.ca_controller import CertificateManager, SelfSignedConfig
from bowline_webhook.tls.files import CertificateFiles
from bowline_webhook.tls.metrics import CertificateMetrics
from bowline_webhook.tls.serving import CertificateError

log = logging.getLogger(__name__)

PROGRAM = "webhook"
# Names in a self-signed certificate that make it valid for local runs, whatever the Service is called.
LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Above the longest webhook timeout (30 s), plus time to close the remaining connections.
FINISH = timedelta(seconds=35)
# Retry a request of the webhook's own rather than wait longer for it.
_TIMEOUT_S = 10.0

# Of the process, what needs an API server.
Part = Callable[[KubeClient], Coroutine[Any, Any, None]]


def main() -> None:
    """Run the process. Exits with 2 for errors that the operator must fix first."""
    options = parse_options()
    settings, plugins = load_configuration(PROGRAM, options.common, Registry(BUILTINS))
    try:
        run_process(partial(run, options, settings, plugins))
    except (CertificateError, OSError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        sys.exit(2)


async def run(options: Options, settings: Settings, plugins: Sequence[Plugin], stop: ShutdownSignal) -> None:
    """Serve until ``stop``. Raises CertificateError or OSError if it cannot start."""
    registry = new_registry()
    metrics = WebhookMetrics(registry, [plugin.name for plugin in plugins])
    unread = unread_annotations(plugins)
    chain = AdmissionChain(plugins, settings, options.common.namespace, on_error=_reporter(metrics), unread=unread)
    certificates = CertificateMetrics(registry)
    files = CertificateFiles(options.files, certificates, SystemClock())
    certificates.follow("leaf", files.serving.not_after)
    kube_metrics = KubeMetrics(registry)
    runtime = RuntimeWatcher()
    guard = RepeatGuard(settings.admission.repeat_backoff)
    server = AdmissionServer(
        options.listen,
        files.serving.context,
        chain,
        metrics,
        mode=settings.admission.mode,
        gpu_runtime=runtime.current,
        stored_errors=guard.errors,
        allowed_names=options.client_names,
    )
    certificate_manager = _certificate_manager(options, files, certificates)
    parts: list[Part] = [certificate_manager.run] if certificate_manager is not None else []
    if any(plugin.name == "gpu_sharing" for plugin in plugins):
        parts.append(runtime.run)
    if settings.admission.repeat_backoff and settings.admission.mode != "Off":
        parts.append(guard.run)
    no_access = certificate_manager.no_access if certificate_manager is not None else lambda _: None
    probes = ProbeServer(options.common.metrics_listen, registry, _checks(server, certificate_manager), "webhook")
    try:
        await probes.start()
        await server.start()
        freeze_startup_objects()
        async with RootTasks(stop) as tasks:
            tasks.start("watchdog", EventLoopWatchdog(server.current_call, metrics.plugin_errors).run())
            tasks.start("certificate files", files.run())
            if parts:
                access = wait_for_access(options.common.api_server, stop, no_access)
                tasks.start("cluster", _with_client(access, kube_metrics, parts))
            await stop.wait()
            log.info("stopping", extra={"reason": stop.reason, "drain": str(options.drain)})
            await shut_down(_stop_steps(options.drain, server))
    finally:
        await server.stop()
        await probes.stop()


async def _with_client(access: Awaitable[ClusterAccess | None], metrics: KubeMetrics, parts: Iterable[Part]) -> None:
    """Run the parts until cancelled, when there is access to an API server; None: the process stops before."""
    cluster_access = await access
    if cluster_access is None:
        return
    options = ClientOptions(name=FIELD_MANAGER_WEBHOOK, timeout_s=_TIMEOUT_S, metrics=metrics)
    async with KubeClient(cluster_access, options) as client, asyncio.TaskGroup() as tasks:
        for part in parts:
            tasks.create_task(part(client))


def _certificate_manager(
    options: Options, files: CertificateFiles, metrics: CertificateMetrics
) -> CertificateManager | None:
    """Return the component that signs the serving certificate; None if it is from files."""
    if not options.self_signed:
        return None
    names = (*service_names(options.service_name, options.ca_secret.namespace), *LOOPBACK)
    config = SelfSignedConfig(options.ca_secret, names, options.webhook_configuration)
    return CertificateManager(config, files.serving, metrics)


def _checks(server: AdmissionServer, certificate_manager: CertificateManager | None) -> Mapping[str, Check]:
    checks: dict[str, Check] = {"listener": server.not_ready_reason}
    return checks if certificate_manager is None else checks | {"certificate": certificate_manager.not_ready_reason}


def _stop_steps(drain: timedelta, server: AdmissionServer) -> tuple[ShutdownStep, ...]:
    """Return the shutdown table: three quarters of the drain ready, a quarter not ready, then no listener."""
    closing = drain / 4
    serving = drain - closing

    async def serve() -> None:
        await asyncio.sleep(serving.total_seconds())

    async def close_after_response() -> None:
        server.close_after_response()
        await asyncio.sleep(closing.total_seconds())

    slack = timedelta(seconds=5)
    return (
        ShutdownStep(
            "serve",
            "where all replicas stop together, none but these serve until others start",
            serve,
            serving + slack,
        ),
        ShutdownStep(
            "close after response",
            "each response closes its connection; load balancers read that the replica is not ready",
            close_after_response,
            closing + slack,
        ),
        ShutdownStep("stop listening", "requests in flight get their response", server.stop, FINISH),
    )


def _reporter(metrics: WebhookMetrics) -> Callable[[str, str, BaseException], None]:
    def report(plugin: str, point: str, error: BaseException) -> None:
        metrics.plugin_errors.labels(plugin=plugin, point=point).inc()
        log.error("plugin failed", extra={"plugin": plugin, "point": point}, exc_info=error)

    return report
