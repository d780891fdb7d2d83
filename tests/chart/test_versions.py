"""Every object of every preset is valid for the oldest Kubernetes that is supported, by published schemas; no field
is unknown. `test_objects_live` asks the newest one.

The kinds of other projects have no schema here: cert-manager's, and those of the Prometheus operator.
"""

import json
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

from tests.chart.presets import EVERYTHING
from tests.chart.rendering import CHART, Chart

VERSION = "1.32"
FOLDER = f"kubernetes-json-schema/v{VERSION}.0-local-strict"
FILES = sorted((CHART / "presets").glob("*.yaml"))
SCHEDULER = CHART.parents[1] / "examples" / "scheduler" / "values.yaml"
EXAMPLE = SCHEDULER.with_name("rbac.yaml")
PRESETS = [
    pytest.param((), {}, id="defaults"),
    pytest.param((), EVERYTHING, id="every value"),
    *(pytest.param((file,), {}, id=file.stem) for file in (*FILES, SCHEDULER)),
]


@lru_cache
def validator(kind: str, api_version: str) -> Draft202012Validator:
    """The validator that `kubernetes_validate.validate` makes for each object anew: definitions are 2 MB of JSON."""
    group, _, suffix = api_version.rpartition("/")
    name = "-".join(part for part in (kind.lower(), group.partition(".")[0], suffix) if part)
    schema = schema_contents(f"{FOLDER}/{name}.json", VERSION)
    return Draft202012Validator(schema, registry=Resource.from_contents(schema) @ definitions())


@lru_cache
def definitions() -> Registry[Any]:
    """The definitions that all schemas refer to."""
    contents = schema_contents(f"{FOLDER}/_definitions.json", VERSION)
    return (Resource.from_contents(contents) @ Registry()).crawl()


@lru_cache
def errors(document: str) -> tuple[str, ...]:
    """Validate an object, in JSON: most objects are the same in all presets."""
    obj = json.loads(document)
    error = best_match(validator(obj["kind"], obj["apiVersion"]).iter_errors(obj))
    if error is None:
        return ()
    path = ".".join(str(part) for part in error.absolute_path)
    return (f"{obj['kind']} {obj['metadata']['name']}: {path}: {error.message}",)


@pytest.mark.parametrize(("files", "values"), PRESETS)
def test_a_preset_is_valid(chart: Chart, files: tuple[Path, ...], values: dict[str, Any]) -> None:
    objects = chart.render(values, files=files).objects
    assert objects
    assert [text for obj in objects for text in errors(json.dumps(obj, sort_keys=True))] == []


def test_no_object_depends_on_the_version() -> None:
    templates = (CHART / "templates").rglob("*.*")
    assert [path for path in templates if "KubeVersion" in path.read_text(encoding="utf-8")] == []


def test_the_values_of_the_example_scheduler_grant_what_the_example_grants() -> None:
    def rules(objects: Iterator[Any]) -> Any:
        return next(obj["rules"] for obj in objects if isinstance(obj, dict) and obj["kind"] == "ClusterRole")

    preset = yaml.safe_load(SCHEDULER.read_text(encoding="utf-8"))
    assert rules(iter(preset["extraObjects"])) == rules(yaml.safe_load_all(EXAMPLE.read_text(encoding="utf-8")))
