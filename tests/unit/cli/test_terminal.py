"""Colours: only on a terminal. Text that CI systems take for commands is made inert."""

import io
import json
import re
from collections.abc import Mapping

import pytest

from bowline_cli.terminal import RED, has_colours, inert_json, printable, shown


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "environment", "expectation"),
    [
        pytest.param(Terminal(), {"TERM": "xterm"}, True, id="a terminal"),
        pytest.param(Terminal(), {"NO_COLOR": "1"}, False, id="a user without colours"),
        pytest.param(Terminal(), {"TERM": "dumb"}, False, id="a terminal without colours"),
        pytest.param(io.StringIO(), {}, False, id="a file"),
    ],
)
def test_colours_are_for_terminals(stream: io.StringIO, environment: Mapping[str, str], expectation: bool) -> None:
    assert has_colours(stream, environment) is expectation


def test_a_colour_ends_with_its_line_and_names_cannot_add_one() -> None:
    assert shown([("a\x1b[32m", RED), ("b", "")], colours=True) == "\x1b[31ma\\x1b[32m\x1b[0m\nb"
    assert shown([("a", RED)], colours=False) == "a"


COMMANDS = ["::stop-commands::x", "  ::set-output name=a::b", "##[error]x", "a ##vso[task.complete]", "##teamcity[x]"]


@pytest.mark.parametrize("text", COMMANDS)
def test_no_name_or_value_is_a_command_to_a_ci_system(text: str) -> None:
    encoded = inert_json(json.dumps([text], indent=2))
    assert json.loads(encoded) == [text]
    for output in (encoded, printable(text)):
        assert not [line for line in output.splitlines() if line.lstrip().startswith("::")]
        assert re.search(r"##\w*\[", output) is None
