"""Command line of the reconciler process."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bowline.framework.options import DEFAULT_NAMESPACE, CommonOptions, add_common, argument_type, common_options
from bowline.runtime.address import ListenAddress, parse_listen


@dataclass(frozen=True, slots=True)
class Options:
    """The command-line options; ``--help`` documents each."""

    common: CommonOptions
    lease_name: str
    lease_namespace: str
    debug_listen: ListenAddress
    uninstall: str = ""  # Deployment of the reconcilers of a release that ends


def parse_options(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> Options:
    """Parse the command line. On an error prints it and exits with 2, as argparse does."""
    parser = option_parser(environment)
    values = parser.parse_args(arguments)
    common = common_options(values)
    namespace = common.namespace or DEFAULT_NAMESPACE
    return Options(common, values.lease_name, namespace, values.debug_listen, values.uninstall)


def option_parser(environment: Mapping[str, str]) -> argparse.ArgumentParser:
    """Return the parser of the command line, with every flag."""
    parser = argparse.ArgumentParser(
        prog="python -m bowline_reconciler", description="Bowline's BindRequest reconciler.", allow_abbrev=False
    )
    add_common(parser, environment)
    parser.add_argument(
        "--debug-listen",
        type=argument_type(parse_listen),
        metavar="HOST:PORT",
        default=parse_listen("127.0.0.1:6060"),
        help="where the debug page is served over plain HTTP, to any caller that reaches it (%(default)s)",
    )
    parser.add_argument(
        "--lease-name",
        metavar="NAME",
        default="bowline-reconciler",
        help="Lease for leader election, in the namespace Bowline runs in (%(default)s)",
    )
    parser.add_argument(
        "--uninstall",
        metavar="DEPLOYMENT",
        default="",
        help="end a release: stop this Deployment of reconcilers, roll back every request, print what remains, exit",
    )
    return parser
