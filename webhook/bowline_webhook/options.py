"""Command line of the webhook process."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from bowline.api.duration import parse_duration
from bowline.api.meta import ObjectKey
from bowline.framework.options import (
    DEFAULT_NAMESPACE,
    CommonOptions,
    add_common,
    argument_type,
    common_options,
)
from bowline.runtime.address import ListenAddress, parse_listen
from bowline_webhook.tls.files import FilePaths

# The name that the chart gives to the webhook's objects when the release is named bowline.
DEFAULT_NAME = "bowline-webhook"


@dataclass(frozen=True, slots=True)
class Options:
    """The parsed command line; ``--help`` documents each option."""

    common: CommonOptions
    listen: ListenAddress
    files: FilePaths
    webhook_configuration: str
    service_name: str
    ca_secret: ObjectKey
    client_names: tuple[str, ...]
    drain: timedelta

    @property
    def self_signed(self) -> bool:
        """Return whether the process signs its own serving certificate."""
        return self.files.certificate is None


def parse_options(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> Options:
    """Parse the command line. Prints the error and exits with 2, as argparse does."""
    parser = option_parser(environment)
    flags = parser.parse_args(arguments)
    error = _error(flags)
    if error:
        parser.error(error)
    common = common_options(flags)
    return Options(
        common=common,
        listen=flags.listen,
        files=FilePaths(flags.tls_cert_file, flags.tls_private_key_file, flags.client_ca_file),
        webhook_configuration=flags.webhook_configuration,
        service_name=flags.service_name,
        ca_secret=ObjectKey(common.namespace or DEFAULT_NAMESPACE, flags.ca_secret),
        client_names=tuple(flags.client_allowed_name or ()),
        drain=flags.drain,
    )


def option_parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return the parser of the command line, with every flag."""
    parser = argparse.ArgumentParser(
        prog="python -m bowline_webhook", description="Bowline's admission webhook.", allow_abbrev=False
    )
    add_common(parser, environment)
    _add_serving_flags(parser)
    _add_file_flags(parser)
    _add_authority_flags(parser)
    return parser


def _error(flags: argparse.Namespace) -> str:
    """Return the error of a combination of flags; empty if there is none."""
    if bool(flags.tls_cert_file) != bool(flags.tls_private_key_file):
        return "--tls-cert-file and --tls-private-key-file go together: give both or neither"
    if flags.client_allowed_name and not flags.client_ca_file:
        return "--client-allowed-name needs --client-ca-file: without it callers show no certificate"
    return ""


def _add_serving_flags(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--listen",
        type=argument_type(parse_listen),
        metavar="HOST:PORT",
        default=parse_listen(":9443"),
        help="where reviews are answered over TLS (%(default)s)",
    )
    add(
        "--drain",
        type=argument_type(parse_duration),
        metavar="DURATION",
        default=timedelta(seconds=30),
        help="after a stop signal, how long to serve until other replicas have started; in the last quarter the "
        "replica is not ready and closes connections (30s)",
    )
    add(
        "--client-ca-file",
        type=Path,
        metavar="FILE",
        help="answer only clients with a certificate of one of these CAs, PEM; without it all clients",
    )
    add(
        "--client-allowed-name",
        action="append",
        metavar="NAME",
        help="with --client-ca-file: answer only certificates with this common name or DNS name; may be repeated",
    )


def _add_file_flags(parser: argparse.ArgumentParser) -> None:
    files = parser.add_argument_group(
        "serving certificate from files", "read again every few seconds; without them it is self-signed"
    )
    files.add_argument("--tls-cert-file", type=Path, metavar="FILE", help="certificate chain, PEM")
    files.add_argument("--tls-private-key-file", type=Path, metavar="FILE", help="its private key, PEM")


def _add_authority_flags(parser: argparse.ArgumentParser) -> None:
    trust = parser.add_argument_group("self-signed serving certificate")
    trust.add_argument(
        "--webhook-configuration",
        metavar="NAME",
        default=DEFAULT_NAME,
        help="name of the mutating and of the validating webhook configuration that trust its CA (%(default)s)",
    )
    trust.add_argument(
        "--service-name",
        metavar="NAME",
        default=DEFAULT_NAME,
        help="Service by which the API server calls; a name in the certificate (%(default)s)",
    )
    trust.add_argument(
        "--ca-secret",
        metavar="NAME",
        default=f"{DEFAULT_NAME}-ca",
        help="Secret that holds its CA (%(default)s)",
    )
