"""The ``bowline`` command: a table of sub-commands, one module each."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from cli import lint

COMMANDS = (lint,)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status. argparse exits with 2 for a bad command line."""
    parser = argparse.ArgumentParser(
        prog="bowline", description="Admission and binding of pods, from the command line.", allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"bowline {_version()}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_command(commands)
    options = parser.parse_args(arguments)
    for stream in (sys.stdout, sys.stderr):
        # A manifest may contain characters that the terminal cannot encode.
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # TextIO has it, typeshed declares Any
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader, such as ``head``, has closed the pipe; Python would report it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status


def _version() -> str:
    try:
        return version("bowline")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "(not installed)"


if __name__ == "__main__":
    sys.exit(main())
