"""Text that CI systems take for commands is made inert."""

import json
import re

import pytest

from bowline_cli.terminal import inert_json, printable

COMMANDS = ["::stop-commands::x", "  ::set-output name=a::b", "##[error]x", "a ##vso[task.complete]", "##teamcity[x]"]


@pytest.mark.parametrize("text", COMMANDS)
def test_no_name_or_value_is_a_command_to_a_ci_system(text: str) -> None:
    encoded = inert_json(json.dumps([text], indent=2))
    assert json.loads(encoded) == [text]
    for output in (encoded, printable(text)):
        assert not [line for line in output.splitlines() if line.lstrip().startswith("::")]
        assert re.search(r"##\w*\[", output) is None
