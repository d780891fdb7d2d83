"""``bowline plugin``: commands for the authors and the operators of plugins; a table of sub-commands."""

import argparse

from bowline_cli import plugin_access, plugin_check, plugin_new, plugin_run

# Each is a module with `add_arguments`, which sets the default `run`.
COMMANDS = {
    "new": ("write a distribution with a plugin and its tests", plugin_new),
    "check": ("check that a plugin conforms", plugin_check),
    "run": ("run a plugin on a local cluster", plugin_run),
    "access": ("print what plugins need of the cluster, as values of the chart", plugin_access),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = "Commands for plugins of your own. Exit status: 0 done, else as each command states."
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (summary, module) in COMMANDS.items():
        module.add_arguments(commands.add_parser(name, help=summary, allow_abbrev=False))
