"""Command line of the webhook process."""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

from shared.api.duration import parse_duration
from shared.framework.gates import parse_gates_flag
from shared.runtime.logging import LogFormat
from shared.runtime.probes import ListenAddress, parse_listen

T = TypeVar("T")

# What the chart calls the webhook's objects when the release is named bowline.
DEFAULT_NAME = "bowline-webhook"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; ``--help`` has the meaning of each."""

    config: Path | None
    kubeconfig: Path | None
    listen: ListenAddress
    metrics_listen: ListenAddress
    tls_files: tuple[Path, Path] | None  # certificate chain, private key
    webhook_configurations: tuple[str, ...]
    service_name: str
    namespace: str
    drain: timedelta
    feature_gates: Mapping[str, bool]
    log_format: LogFormat
    log_level: str


def parse_options(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> Options:
    """Parse the command line. Prints what is wrong and exits with 2, as argparse does."""
    parser = _parser(environment)
    given = parser.parse_args(arguments)
    if bool(given.tls_cert_file) != bool(given.tls_private_key_file):
        parser.error("--tls-cert-file and --tls-private-key-file go together: give both or neither")
    return Options(
        config=given.config,
        kubeconfig=given.kubeconfig,
        listen=given.listen,
        metrics_listen=given.metrics_listen,
        tls_files=(given.tls_cert_file, given.tls_private_key_file) if given.tls_cert_file else None,
        webhook_configurations=tuple(dict.fromkeys(given.webhook_configuration or (DEFAULT_NAME,))),
        service_name=given.service_name,
        namespace=given.namespace,
        drain=given.drain,
        feature_gates=given.feature_gates,
        log_format=cast(LogFormat, given.log_format),
        log_level=given.log_level,
    )


def _parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m webhook", description="Bowline's admission webhook.", allow_abbrev=False
    )
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="configuration document; without it the built-in defaults hold")
    add(
        "--kubeconfig",
        type=Path,
        metavar="FILE",
        help="access to the API server, only to publish a self-signed certificate; "
        "without it the pod's ServiceAccount, $KUBECONFIG or ~/.kube/config",
    )
    listen: dict[str, Any] = {"type": _typed(parse_listen), "metavar": "HOST:PORT"}
    add("--listen", **listen, default=parse_listen(":9443"), help="where reviews are answered over TLS (%(default)s)")
    add(
        "--metrics-listen",
        **listen,
        default=parse_listen(":8080"),
        help="where /healthz, /readyz and /metrics are served over plain HTTP (%(default)s)",
    )
    _add_certificate_flags(parser)
    add(
        "--namespace",
        metavar="NAME",
        default=environment.get("POD_NAMESPACE", ""),
        help="namespace Bowline runs in, whose pods it never judges ($POD_NAMESPACE)",
    )
    add(
        "--drain",
        type=_typed(parse_duration),
        metavar="DURATION",
        default=timedelta(seconds=8),
        help="after a stop signal, how long to go on serving while API servers turn to other replicas (8s)",
    )
    add(
        "--feature-gates",
        type=_typed(parse_gates_flag),
        metavar="A=true,B=false",
        default={},
        help="switches of alpha and beta behaviour, over those of the configuration",
    )
    add("--log-format", choices=("json", "text"), default="json", help="(%(default)s)")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="(%(default)s)")
    return parser


def _add_certificate_flags(parser: argparse.ArgumentParser) -> None:
    files = parser.add_argument_group("serving certificate", "given by files, else self-signed at start")
    files.add_argument("--tls-cert-file", type=Path, metavar="FILE", help="certificate chain, PEM")
    files.add_argument("--tls-private-key-file", type=Path, metavar="FILE", help="its private key, PEM")
    files.add_argument(
        "--webhook-configuration",
        action="append",
        metavar="NAME",
        help="name of the mutating and of the validating webhook configuration that are to trust a self-signed "
        f"certificate; may be repeated ({DEFAULT_NAME})",
    )
    files.add_argument(
        "--service-name",
        metavar="NAME",
        default=DEFAULT_NAME,
        help="Service by which the API server calls; a name in the self-signed certificate (%(default)s)",
    )


def _typed(parse: Callable[[str], T]) -> Callable[[str], T]:
    """Let argparse show the parser's own sentence; of a ValueError it would show only that there was one."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert
