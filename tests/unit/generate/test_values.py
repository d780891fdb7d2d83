"""The generated sections of the values and of their schema have the keys, defaults and bounds of the model."""

import json
from typing import Any

import pytest
import yaml

from bowline.framework.config import Binding, LeaderElection
from tools.generate import values

SECTIONS = [("binding", Binding), ("leaderElection", LeaderElection)]


@pytest.mark.parametrize(("key", "model"), SECTIONS)
def test_the_values_are_the_defaults_of_the_model(key: str, model: type[Binding | LeaderElection]) -> None:
    section = yaml.safe_load(values.as_yaml())["config"][key]
    assert model.model_validate(section) == model()
    assert set(section) == {field.alias for field in model.model_fields.values()}


@pytest.mark.parametrize(("key", "model"), SECTIONS)
def test_the_bounds_in_the_schema_are_those_of_the_model(key: str, model: type[Binding | LeaderElection]) -> None:
    section = json.loads(values.as_schema())["properties"]["config"]["properties"][key]
    assert bounds(section) == bounds(model.model_json_schema(by_alias=True))


def bounds(schema: dict[str, Any]) -> dict[str, tuple[int | None, int | None]]:
    return {key: (field.get("minimum"), field.get("maximum")) for key, field in schema["properties"].items()}
