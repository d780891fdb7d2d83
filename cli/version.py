"""``bowline version``."""

import argparse

from shared.runtime.version import version_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = "Print the versions of Bowline and of Python. Exit status: 0 always."
    parser.set_defaults(run=run)


def run(_: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    print(version_text())
    return 0
