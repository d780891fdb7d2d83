"""``bowline plugin access``: what the plugins of a configuration need of the cluster, as values of the chart.

The chart has the built-in plugins' access itself; printed is that of the others. Needs no cluster.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bowline.api.field_error import FieldError
from bowline.framework.config import ConfigurationError, load_settings
from bowline.framework.interface.access import as_values, hooks_of
from bowline.framework.interface.plugin import AdmissionPlugin
from bowline.framework.plugin_class import ACCESS
from bowline.framework.registry import Registry, installed_plugins
from bowline.plugins.catalog import BUILTINS, plugin_access
from bowline_cli.terminal import printable

EXIT_USAGE = 2
HEADER = "# Values of the chart, printed by `bowline plugin access`: what plugins need of the cluster.\n"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Print what plugins need of the cluster, as values of the chart, a file for helm upgrade. "
        "Exit status: 0 printed, 2 an invalid configuration or plugin."
    )
    what = "the cluster's Bowline configuration; without it every installed plugin counts as enabled"
    parser.add_argument("--config", type=Path, metavar="FILE", help=what)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the values; return the exit status."""
    try:
        if options.config is None:
            access: Sequence[Mapping[str, Any]] = list(_installed())
        else:
            access = plugin_access(Registry(BUILTINS).build(load_settings(options.config)))
    except ConfigurationError as error:
        for field_error in error.errors:
            sys.stderr.write(f"{printable(str(field_error))}  ({field_error.rule})\n")
        return EXIT_USAGE
    sys.stdout.write(HEADER + yaml.safe_dump({"pluginAccess": access}, sort_keys=False, width=110))
    return 0


def _installed() -> Iterator[Mapping[str, Any]]:
    """Yield the access of every installed plugin, with the defaults of its arguments; no other one is needed, unless
    a rule names it. Raises ConfigurationError.
    """
    names = {point.name for point in installed_plugins()} - {builtin.plugin.name for builtin in BUILTINS}
    for kind in Registry(BUILTINS).classes(sorted(names)):
        fields = kind.config_model.model_fields.items()
        arguments = {
            name: entry.get_default(call_default_factory=True) for name, entry in fields if not entry.is_required()
        }
        try:
            yield as_values(kind.name, hooks_of(kind, AdmissionPlugin), kind.access, arguments)
        except KeyError as error:
            message = (
                "is named by a rule of the plugin's access, and has no default; give the configuration: --config FILE"
            )
            raise ConfigurationError(
                [FieldError(ACCESS, f"{kind.name}.args.{error.args[0]}", None, message)]
            ) from error
