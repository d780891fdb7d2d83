"""``bowline completion SHELL``: prints a script with which a shell completes commands, options and files.

The script is made from the parsers of all commands by the package shtab, an extra: no other command imports it.
"""

import argparse
import sys
from collections.abc import Iterator

EXIT_USAGE = 2
SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Print a script for completion in a shell. For bash: bowline completion bash > "
        "~/.local/share/bash-completion/completions/bowline. For zsh: bowline completion zsh > a file _bowline in a "
        "folder of $fpath. For fish: bowline completion fish > ~/.config/fish/completions/bowline.fish. Exit status: "
        "0 printed, 2 bad usage."
    )
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    try:
        import shtab  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        print("completion needs the Python package shtab: pip install shtab", file=sys.stderr)
        return EXIT_USAGE
    from bowline_cli.main import COMMANDS, build_parser  # noqa: PLC0415 - main imports this module by name

    parser = build_parser(COMMANDS)
    for action in _actions(parser):
        if action.metavar == "FILE":
            action.complete = shtab.FILE  # type: ignore[attr-defined]  # shtab reads it
    print(shtab.complete(parser, options.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yield the options and arguments of the parser and of its commands."""
    for action in parser._actions:
        yield action
        for command in action.choices.values() if isinstance(action.choices, dict) else ():
            yield from _actions(command)
