"""Command line options common to both processes: files, addresses, logs.

An invalid command line, or an invalid configuration, is reported completely and ends the process with 2 before
anything starts. ``--check`` ends there also if both are valid, for the Job of the chart (decision 165).
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from bowline.framework.config import ConfigurationError, Settings, load_settings
from bowline.framework.interface.plugin import Plugin
from bowline.framework.registry import Registry
from bowline.kube.config import ApiServer
from bowline.runtime.address import ListenAddress, parse_listen
from bowline.runtime.logging import LogFormat, configure_logging
from bowline.runtime.version import version_text

T = TypeVar("T")

# Used where neither the pod's environment nor a flag gives Bowline's namespace, as in a developer's checkout.
DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class CommonOptions:
    """The options of both processes; ``--help`` documents each."""

    config: Path | None
    api_server: ApiServer | None
    metrics_listen: ListenAddress
    namespace: str
    log_format: LogFormat
    log_level: str
    check: bool = False


def add_common(parser: argparse.ArgumentParser, environment: Mapping[str, str] = os.environ) -> None:
    """Add the common flags."""
    add = parser.add_argument
    add("--config", type=Path, metavar="FILE", help="configuration document; without it the built-in defaults hold")
    add_api_server(parser)
    add(
        "--metrics-listen",
        type=argument_type(parse_listen),
        metavar="HOST:PORT",
        default=parse_listen(":8080"),
        help="where /healthz, /readyz and /metrics are served over plain HTTP (%(default)s)",
    )
    add(
        "--namespace",
        metavar="NAME",
        default=environment.get("POD_NAMESPACE", ""),
        help="namespace Bowline runs in ($POD_NAMESPACE)",
    )
    add(
        "--check",
        action="store_true",
        help="check the command line and the configuration, then exit: 0 if they are valid, else 2 with every error",
    )
    add("--version", action="version", version=version_text(), help="print the versions of Bowline and of Python")
    add("--log-format", choices=("json", "text"), default="json", help="(%(default)s)")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="(%(default)s)")


def add_api_server(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the API server's address and credentials."""
    parser.add_argument(
        "--server",
        type=argument_type(parse_server),
        metavar="URL",
        help="API server, also `kubectl proxy`; without it the one of the pod's cluster, by its ServiceAccount",
    )
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="bearer token for --server; read again every minute"
    )
    parser.add_argument("--ca-file", type=Path, metavar="FILE", help="CAs of --server, PEM; without it the system's")


def parse_server(text: str) -> str:
    """Return the URL. Raises ValueError for one that is none of an API server."""
    url = urlsplit(text)
    if url.scheme not in ("http", "https") or not url.hostname:
        raise ValueError(f"{text!r} must be an http or https URL")
    return text


def api_server(flags: argparse.Namespace) -> ApiServer | None:
    """Return the API server that the flags name; None if they name none."""
    return ApiServer(flags.server, flags.token_file, flags.ca_file) if flags.server else None


def common_options(flags: argparse.Namespace) -> CommonOptions:
    """Return the values of the common flags."""
    return CommonOptions(
        config=flags.config,
        api_server=api_server(flags),
        metrics_listen=flags.metrics_listen,
        namespace=flags.namespace,
        log_format=cast(LogFormat, flags.log_format),
        log_level=flags.log_level,
        check=flags.check,
    )


def load_configuration(
    program: str, options: CommonOptions, registry: Registry
) -> tuple[Settings, tuple[Plugin, ...]]:
    """Return the settings and the enabled plugins, and configure logging.

    Prints all errors of an invalid configuration and exits with 2; with ``--check`` exits with 0 if it is valid.
    """
    try:
        settings = load_settings(options.config)
        plugins = registry.build(settings)
    except ConfigurationError as error:
        where = f"configuration {options.config}" if options.config is not None else "the configuration"
        number = len(error.errors)
        sys.stderr.write(f"{program}: {where}: {number} error{'s' if number != 1 else ''}:\n{error}\n")
        sys.exit(2)
    if options.check:
        sys.exit(0)
    configure_logging(options.log_format, options.log_level)
    return settings, plugins


def argument_type(parse: Callable[[str], T]) -> Callable[[str], Any]:
    """Make argparse show the parser's own message; for a ValueError it shows a generic one."""

    def convert(text: str) -> T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return convert
