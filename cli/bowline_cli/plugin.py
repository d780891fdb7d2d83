"""``bowline plugin``: commands for the authors and the operators of plugins; a table of sub-commands.

The one that starts a local cluster needs an extra, so that its module is imported only when it runs.
"""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from bowline.runtime.version import DISTRIBUTION
from bowline_cli import plugin_access, plugin_new

EXIT_USAGE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = "Commands for plugins of your own. Exit status: 0 done, else as each command states."
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (summary, add) in COMMANDS.items():
        add(commands.add_parser(name, help=summary, allow_abbrev=False))


def _add_check(parser: argparse.ArgumentParser) -> None:
    """Describe the command line of ``bowline plugin check``."""
    parser.description = (
        "Check a plugin: its class, its admission, and its binding while processes end and requests fail. "
        "Exit status: 0 no findings, 1 findings, 2 the plugin or the API server cannot be started."
    )
    parser.add_argument("plugin", help="the name of an installed or built-in plugin, or module:Class")
    what = "the plugin's arguments, as in the configuration"
    parser.add_argument("--args", type=_object, default={}, metavar="JSON", help=what)
    what = "a file with pods that concern the plugin, instead of those of its distribution; may be repeated"
    parser.add_argument("--pod", type=Path, action="append", dest="pods", default=[], metavar="FILE", help=what)
    parser.add_argument("--no-cluster", action="store_true", help="only what needs no API server")
    parser.add_argument("--limit", type=float, default=10.0, metavar="SECONDS", help="of an attempt (default: 10)")
    parser.set_defaults(run=_lazily("plugin_check"))


def _object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value


def _lazily(module: str) -> Callable[[argparse.Namespace], int]:
    """Return the command of a module that is imported when it runs."""

    def run(options: argparse.Namespace) -> int:
        try:
            command = import_module(f"bowline_cli.{module}").run
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            needed = f"the Python package {package}: run pip install '{DISTRIBUTION}[testing]'"
            sys.stderr.write(f"bowline {module.replace('_', ' ')} needs {needed}\n")
            return EXIT_USAGE
        status: int = command(options)
        return status

    return run


# Each adds its arguments and sets the default `run`.
COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "new": ("write a distribution with a plugin and its tests", plugin_new.add_arguments),
    "check": ("check that a plugin conforms", _add_check),
    "access": ("print what plugins need of the cluster, as values of the chart", plugin_access.add_arguments),
}
