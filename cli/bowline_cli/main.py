"""The ``bowline`` command: a table of sub-commands, one module each."""

import argparse
import os
import signal
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module

# Each but the last is a module here with `add_arguments`. Only the one that runs is imported: lint needs no network.
COMMANDS = {
    "lint": "review manifests as the cluster's webhook would",
    "rule": "explain a rule that a denial or a warning names",
    "explain": "explain why a pod is not bound",
    "check": "check whether an installed release works",
    "plugin": "commands for plugins of your own",
    "version": "print the versions of Bowline and of Python",
}

EXAMPLES = """examples:
  bowline lint deploy/                 the cluster's verdict on manifests, offline
  bowline explain train-7d9f -n team   why the pod is not bound, and what helps
  bowline check --wait 2m              whether the release works
  bowline rule gpu_request/memory-format    what the rule that a denial names demands
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status. argparse exits with 2 for a bad command line."""
    arguments = sys.argv[1:] if arguments is None else arguments
    topic = next((argument for argument in arguments if not argument.startswith("-")), "")
    if arguments in (["version"], ["--version"]):
        print(import_module("bowline.runtime.version").version_text())
        return 0
    if topic == "help":  # as `kubectl help COMMAND`
        arguments = [*(argument for argument in arguments if argument != "help"), "--help"]
        topic = arguments[0]
    options = build_parser([topic]).parse_args(arguments)
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
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return status


def build_parser(names: Iterable[str]) -> argparse.ArgumentParser:
    """Return the parser; only the commands of these names have their arguments, which need an import."""
    parser = argparse.ArgumentParser(
        prog="bowline",
        description="Admission and binding of pods, from the command line.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="show program's version number and exit")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        command = commands.add_parser(name, help=summary, allow_abbrev=False)
        if name in names and name != "version":
            import_module(f"bowline_cli.{name}").add_arguments(command)
    return parser


if __name__ == "__main__":
    sys.exit(main())
