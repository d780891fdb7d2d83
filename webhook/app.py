"""The webhook process: what it is made of, and the order in which it starts and stops.

Serving needs no API server: with a certificate from files none is ever called. With a self-signed one the process
serves at once and becomes ready when the API server has been told to trust it.
"""

import asyncio
import ipaddress
import logging
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial

from shared.api.names import FIELD_MANAGER_WEBHOOK
from shared.framework.admission import AdmissionChain
from shared.framework.config import ConfigurationError, Settings, load_settings
from shared.framework.gates import GATES
from shared.framework.plugin import Plugin
from shared.framework.registry import Registry
from shared.kube.client import ClientOptions, KubeClient
from shared.kube.config import load_access
from shared.plugins.catalog import BUILTINS
from shared.runtime.logging import configure_logging
from shared.runtime.metrics import new_registry
from shared.runtime.probes import ProbeServer
from shared.runtime.tasks import Stop, StopStep, Supervisor, run_process, stop_in_order
from webhook.certs.context import CertificateError, context_from_files, context_from_pair
from webhook.certs.publish import CaPublisher
from webhook.certs.selfsigned import make_serving_pair, service_names
from webhook.metrics import WebhookMetrics
from webhook.options import Options, parse_options
from webhook.server import AdmissionServer

log = logging.getLogger(__name__)

# By these the certificate is valid for local runs, whatever the Service is called.
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the process; returns its exit status: 2 for what the operator must mend first."""
    options = parse_options(arguments)
    configure_logging(options.log_format, options.log_level)
    try:
        settings = load_settings(options.config, options.feature_gates)
        plugins = Registry(BUILTINS, GATES).build(settings)
    except ConfigurationError as error:
        print(f"the configuration cannot be used:\n{error}", file=sys.stderr)  # noqa: T201 - for whoever starts it
        return 2
    try:
        run_process(partial(run, options, settings, plugins))
    except (CertificateError, OSError) as error:
        print(error, file=sys.stderr)  # noqa: T201 - likewise
        return 2
    return 0


async def run(options: Options, settings: Settings, plugins: Sequence[Plugin], stop: Stop) -> None:
    """Serve until told to stop. Raises CertificateError or OSError if it cannot begin."""
    registry = new_registry()
    metrics = WebhookMetrics(registry, [plugin.name for plugin in plugins])
    chain = AdmissionChain(plugins, settings, options.namespace, on_error=_reporter(metrics))
    context, publisher = serving_context(options)
    server = AdmissionServer(options.listen, context, chain, metrics)
    checks = {"listener": server.missing}
    if publisher is not None:
        checks["caBundle"] = publisher.missing
    probes = ProbeServer(options.metrics_listen, registry, checks)
    try:
        await probes.start()
        await server.start()
        async with Supervisor(stop) as tasks:
            if publisher is not None:
                tasks.start("publish-ca", publisher.run())
            await stop.wait()
            log.info("stopping", extra={"reason": stop.reason, "drain": str(options.drain)})
            await stop_in_order(_stop_steps(options.drain, server))
    finally:
        await server.stop()
        await probes.stop()


def serving_context(options: Options) -> tuple[ssl.SSLContext, CaPublisher | None]:
    """Return what to serve with and, for a self-signed certificate, what makes the API server trust it."""
    if options.tls_files is not None:
        return context_from_files(*options.tls_files), None
    names = (*service_names(options.service_name, options.namespace), *_own_host(options.listen.host), *LOOPBACK)
    pair = make_serving_pair(names, datetime.now(UTC))
    connect = partial(_connected, options)
    return context_from_pair(pair), CaPublisher(connect, options.webhook_configurations, pair.authority)


def _own_host(host: str) -> tuple[str, ...]:
    """Return the listening host as a name to be called by; none for "all interfaces"."""
    try:
        return () if not host or ipaddress.ip_address(host).is_unspecified else (host,)
    except ValueError:
        return (host,)


@asynccontextmanager
async def _connected(options: Options) -> AsyncIterator[KubeClient]:
    access = await load_access(options.kubeconfig)
    async with KubeClient(access, ClientOptions(name=FIELD_MANAGER_WEBHOOK, timeout_s=10.0)) as client:
        yield client


def _stop_steps(drain: timedelta, server: AdmissionServer) -> tuple[StopStep, ...]:
    async def drained() -> None:
        server.drain()
        await asyncio.sleep(drain.total_seconds())

    slack = timedelta(seconds=5)
    return (
        StopStep(
            "drain", "API servers must turn to other replicas while this one still answers", drained, drain + slack
        ),
        StopStep("listener", "calls under way get their answer", server.stop, timedelta(seconds=30) + slack),
    )


def _reporter(metrics: WebhookMetrics) -> Callable[[str, str, Exception], None]:
    def report(plugin: str, point: str, error: Exception) -> None:
        metrics.plugin_errors.labels(plugin=plugin, point=point).inc()
        log.error("plugin failed", extra={"plugin": plugin, "point": point}, exc_info=error)

    return report
