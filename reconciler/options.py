"""Command line of the reconciler process."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shared.framework.options import CommonOptions, add_common, common_options

# Where neither the pod's environment nor a flag says where Bowline runs: a developer's checkout.
DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says; ``--help`` has the meaning of each."""

    common: CommonOptions
    lease_name: str
    lease_namespace: str


def parse_options(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> Options:
    """Parse the command line. Prints what is wrong and exits with 2, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="python -m reconciler", description="Bowline's BindRequest reconciler.", allow_abbrev=False
    )
    add_common(parser, environment)
    parser.add_argument(
        "--lease-name",
        metavar="NAME",
        default="bowline-reconciler",
        help="Lease by which replicas agree who works, in the namespace Bowline runs in (%(default)s)",
    )
    given = parser.parse_args(arguments)
    common = common_options(given)
    return Options(common, given.lease_name, common.namespace or DEFAULT_NAMESPACE)
