"""What the generators leave to a table: every event, reason, key and bound is in what they write.

``make verify`` compares their files with their output.
"""

import json
import re

import yaml

from bowline.api import names
from bowline.framework.config import Binding, LeaderElection
from bowline.framework.reason import Reason, Suggestion
from bowline_cli.main import COMMANDS
from tools.generate import commands, configuration, fields, values
from tools.generate.reference import EVENTS, as_markdown


def test_the_reference_has_every_event_reason_and_suggestion() -> None:
    events = {value for name, value in vars(names).items() if name.startswith("EVENT_")} - {names.EVENT_SOURCE}
    assert events <= set(EVENTS)
    rows = {row.split("`")[1] for row in as_markdown().splitlines() if row.startswith("| `")}
    assert {member.value for member in (*Reason, *Suggestion)} <= rows


def test_the_page_of_commands_has_every_command_and_every_row_a_meaning() -> None:
    first_words = {name.split()[1] for name in commands.parsers() if name.startswith("bowline ")}
    assert first_words == set(COMMANDS) - {"version"}
    for page in (configuration.as_markdown(), commands.as_markdown(), fields.as_markdown()):
        assert re.findall(r"^.*\| +\|$", page, re.MULTILINE) == []


def test_the_values_have_the_keys_defaults_and_bounds_of_the_model() -> None:
    sections = yaml.safe_load(values.as_yaml())["config"]
    schema = json.loads(values.as_schema())["properties"]["config"]["properties"]
    for key, model in (("binding", Binding), ("leaderElection", LeaderElection)):
        assert set(sections[key]) == {field.alias for field in model.model_fields.values()}
        assert model.model_validate(sections[key]) == model()
        for name, field in model.model_json_schema(by_alias=True)["properties"].items():
            for bound in ("minimum", "maximum"):
                assert schema[key]["properties"][name].get(bound) == field.get(bound), f"{key}.{name}"
