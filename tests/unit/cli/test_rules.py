"""The rules of the page and of --explain are those of the code, and each example shows its own rule."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from bowline.framework.admission import AdmissionChain
from bowline.framework.config import PluginEntry, Settings
from bowline.framework.registry import Registry
from bowline.plugins.catalog import BUILTINS
from bowline_cli.main import main
from bowline_cli.manifests import Manifest
from bowline_cli.rules import RULES, Rule
from bowline_cli.verdicts import review_manifest

ROOT = Path(__file__).resolve().parents[3]
# Of the configuration, of files, of malformed AdmissionReviews, of plugins that raise, of annotations by plugins.
OTHER = ("config/", "lint/", "plugin/", "review/", "admission/", "binding/")
WITH_EXAMPLES = [pytest.param(name, rule, id=name) for name, rule in RULES.items() if rule.invalid]


def rules_in_code() -> set[str]:
    """Return the first argument of every FieldError, and the second of gpu_request's ``_error``."""
    rules = set()
    for folder in ("shared", "webhook", "cli"):
        for path in (ROOT / folder).rglob("*.py"):
            if "tests" in path.parts or (path.name == "rules.py" and folder == "cli"):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
                    continue
                texts = [
                    arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
                ]
                if node.func.id == "FieldError" and texts and "/" in texts[0]:
                    rules.add(texts[0])
                elif node.func.id == "_error" and texts:
                    rules.add(f"gpu_request/{texts[0]}")
                elif node.func.id == "schema_errors" and texts and "/" in texts[0]:
                    rules.add(texts[0])
    return {rule for rule in rules if not rule.startswith(OTHER)}


def manifest(example: str) -> Manifest:
    fields: dict[str, Any] = yaml.safe_load(example)
    if "podName" in fields:
        head = {"apiVersion": "scheduling.run.ai/v1alpha2", "kind": "BindRequest", "metadata": {"name": "p"}}
        return Manifest("x", 1, {**head, "spec": fields})
    metadata: dict[str, Any] = {
        "name": "p",
        **{key: fields.pop(key) for key in ("annotations", "labels") if key in fields},
    }
    resources = {key: fields.pop(key) for key in ("limits", "requests") if key in fields}
    container = {"name": "main", "image": "x", "resources": resources}
    spec = {"schedulerName": "bowline", "containers": [container], **fields}
    raw: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return Manifest("x", 1, json.loads(json.dumps(raw)))


def reported(example: str) -> tuple[set[str], set[str]]:
    """Return the rules of the denials and of the warnings. Annotations of nv_fractions enable it."""
    plugins = (PluginEntry(name="nv_fractions"),) if "/container." in example or ".limit" in example else ()
    settings = Settings(plugins=plugins)
    chain = AdmissionChain(Registry(BUILTINS, discover=dict).build(settings), settings)
    review = review_manifest(chain, manifest(example)).review
    return {error.rule for error in review.errors}, {warning.rule for warning in review.warnings}


def test_every_rule_of_the_code_is_documented() -> None:
    assert rules_in_code() == RULES.keys()


@pytest.mark.parametrize(("name", "rule"), WITH_EXAMPLES)
def test_the_invalid_example_is_reported_by_its_rule(name: str, rule: Rule) -> None:
    errors, warnings = reported(rule.invalid)
    assert name in (errors if rule.denies == "D" else warnings)
    assert errors | warnings <= {name, "gpu_request/memory-format"}, "no other rule distracts from it"


@pytest.mark.parametrize(("name", "rule"), WITH_EXAMPLES)
def test_the_valid_example_is_allowed_without_a_warning(name: str, rule: Rule) -> None:
    assert reported(rule.valid) == (set(), set())


def test_a_rule_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--explain", "gpu_request/fraction-range"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "gpu_request/fraction-range denies: gpu-fraction is not above 0 and below 1",
        "  invalid:",
        '    annotations: {gpu-fraction: "2"}',
        "  valid:",
        '    annotations: {gpu-fraction: "0.5"}',
    ]


def test_all_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lint", "--explain"]) == 0
    assert capsys.readouterr().out.split() == list(RULES)


@pytest.mark.parametrize(("name", "hint"), [("fraction-rang", "fraction-range"), ("zzz", "")])
def test_an_unknown_rule_has_the_nearest_name(capsys: pytest.CaptureFixture[str], name: str, hint: str) -> None:
    assert main(["lint", "--explain", name]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"there is no rule {name}")
    assert (hint in error) if hint else ("did you mean" not in error)
