"""``bowline plugin access``: what the plugins of a configuration need of the cluster, as values of the chart.

The chart has the built-in plugins' access itself; printed is that of the others. Needs no cluster.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import yaml

from bowline.framework.config import ConfigurationError, PluginEntry, load_settings
from bowline.framework.gates import GATES
from bowline.framework.plugin import Plugin
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
        settings = load_settings(options.config)
        if options.config is None:
            settings = settings.model_copy(update={"plugins": _installed()})
        plugins = Registry(BUILTINS, GATES).build(settings)
    except ConfigurationError as error:
        for field_error in error.errors:
            sys.stderr.write(f"{printable(str(field_error))}  ({field_error.rule})\n")
        return EXIT_USAGE
    sys.stdout.write(values_of(plugins))
    return 0


def values_of(plugins: Sequence[Plugin]) -> str:
    """Return the chart's values, a YAML document, for those of the plugins that are not built in."""
    return HEADER + yaml.safe_dump({"pluginAccess": plugin_access(plugins)}, sort_keys=False, width=110)


def _installed() -> tuple[PluginEntry, ...]:
    names = {point.name for point in installed_plugins()} - {builtin.plugin.name for builtin in BUILTINS}
    return tuple(PluginEntry(name=name) for name in sorted(names))
