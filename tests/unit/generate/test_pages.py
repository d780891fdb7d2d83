"""The generated pages have every key, flag and field, compared with sources that their generators do not read."""

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import yaml

from bowline_cli.main import COMMANDS, main
from bowline_reconciler.options import parse_options as parse_reconciler
from bowline_webhook.options import parse_options as parse_webhook
from tools.generate import commands, configuration, fields
from tools.generate.__main__ import CHART

PROGRAMS: dict[str, Callable[[], object]] = {
    **{
        name: partial(main, [*name.split()[1:], "--help"])
        for name in commands.parsers()
        if name.startswith("bowline ")
    },
    "python -m bowline_webhook": partial(parse_webhook, ["--help"], {}),
    "python -m bowline_reconciler": partial(parse_reconciler, ["--help"], {}),
}


def keys(schema: dict[str, Any], definitions: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """The paths of the leaves of a JSON schema; of a list its own and those of its entries."""
    resolved = definitions[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    properties = resolved.get("properties", {})
    if prefix and not properties:
        yield prefix
    for name, value in properties.items():
        yield from keys(value, definitions, f"{prefix}.{name}" if prefix else name)
    items = resolved.get("items", {})
    entry = definitions[items["$ref"].rpartition("/")[2]] if "$ref" in items else items
    if entry.get("properties"):
        yield from keys(entry, definitions, f"{prefix}[]")


def first_column(page: str) -> set[str]:
    return set(re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE))


def test_the_configuration_page_has_every_key_of_the_charts_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    expectation = set(keys(schema["properties"]["config"], schema["definitions"]))
    assert first_column(configuration.as_markdown()) == expectation - {"apiVersion", "kind"}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_page_of_commands_has_every_flag_of_the_usage(program: str) -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), pytest.raises(SystemExit):
        PROGRAMS[program]()
    section = commands.as_markdown().partition(f"\n## {program}\n")[2].partition("\n## ")[0]
    usage = output.getvalue().partition("\n\n")[0]
    expectation = set(re.findall(r"--[a-z-]+|\b[A-Z]{3,}\b", usage)) - {"--help", "--version"}
    assert expectation
    assert set(re.findall(r"--[a-z-]+|\b[A-Z]{3,}\b", section)) >= expectation


def test_the_page_of_commands_has_every_command() -> None:
    first_words = {name.split()[1] for name in commands.parsers() if name.startswith("bowline ")}
    assert first_words == set(COMMANDS) - {"version"}


def test_every_row_of_the_pages_has_a_meaning() -> None:
    for page in (configuration.as_markdown(), commands.as_markdown(), fields.as_markdown()):
        assert re.findall(r"^.*\| +\|$", page, re.MULTILINE) == []


def test_the_page_of_the_api_has_every_field_of_the_crd() -> None:
    [version] = yaml.safe_load((CHART / "files" / "bindrequests.yaml").read_text())["spec"]["versions"]
    properties = version["schema"]["openAPIV3Schema"]["properties"]
    expectation = set(keys(properties["spec"], {})) | set(keys(properties["status"], {}))
    assert expectation <= first_column(fields.as_markdown())
