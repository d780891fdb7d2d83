"""Each rule is listed and explained, and each example shows its own rule."""

import importlib
import pkgutil
from collections.abc import Iterator

import pytest

import bowline
import bowline_cli
import bowline_webhook
from bowline.api.rule import Rule, Severity
from bowline.framework.admission import AdmissionChain
from bowline.framework.config import PluginEntry, Settings
from bowline.framework.registry import Registry, installed_plugins
from bowline.plugins.catalog import BUILTINS
from bowline_cli.main import main
from bowline_cli.manifests import Manifest
from bowline_cli.rule import admission_rules, all_rules
from bowline_cli.schema import open_schema
from bowline_cli.verdicts import review_manifest
from tests.rule_examples import example_object

WITH_EXAMPLES = [pytest.param(rule, id=rule.id) for rule in admission_rules() if rule.invalid]
SCHEMA = open_schema()
NO_PRODUCT = ("tests", "testing", "conformance", "localcluster", "chart")


def rules_of_modules() -> Iterator[Rule]:
    """Yield every rule that is a value of a module of the product."""
    for package in (bowline, bowline_cli, bowline_webhook):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not any(part in NO_PRODUCT for part in module.name.split(".")) and "__main__" not in module.name:
                for value in vars(importlib.import_module(module.name)).values():
                    if isinstance(value, Rule):
                        yield value


def reported(rule: Rule, example: str) -> tuple[set[str], set[str]]:
    """Return the rules of the denials and of the warnings. The plugin of the rule is enabled."""
    plugins = (PluginEntry(name="nv_fractions"),) if rule.id.startswith("nv_fractions/") else ()
    settings = Settings(plugins=plugins)
    chain = AdmissionChain(Registry(BUILTINS, discover=dict).build(settings), settings)
    review = review_manifest(chain, Manifest("x", 1, example_object(example)), SCHEMA).review
    return {error.rule.id for error in review.errors}, {warning.rule.id for warning in review.warnings}


def test_every_rule_of_the_code_is_listed_once() -> None:
    rules = {rule.id: rule for rule in rules_of_modules()}
    installed = {rule.id for point in installed_plugins() for rule in getattr(point.load(), "rules", ())}
    assert "example_policy/image" in installed, "the example plugins are not installed"
    assert {key: rule for key, rule in all_rules().items() if key not in installed} == rules
    assert installed <= all_rules().keys()
    assert len({id(rule) for rule in rules_of_modules()}) == len(rules)


@pytest.mark.parametrize("rule", WITH_EXAMPLES)
def test_the_invalid_example_is_reported_by_its_rule(rule: Rule) -> None:
    errors, warnings = reported(rule, rule.invalid)
    assert rule.id in (errors if rule.severity is Severity.DENIES else warnings)
    assert errors | warnings <= {rule.id, "gpu_request/memory-format"}, "no other rule distracts from it"


@pytest.mark.parametrize("rule", WITH_EXAMPLES)
def test_the_valid_example_is_allowed_without_a_warning(rule: Rule) -> None:
    assert reported(rule, rule.valid) == (set(), set())


def test_a_rule_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rule", "gpu_request/fraction-range"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "gpu_request/fraction-range denies: gpu-fraction is not above 0 and below 1",
        "  invalid:",
        '    annotations: {gpu-fraction: "2"}',
        "  valid:",
        '    annotations: {gpu-fraction: "0.5"}',
    ]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("fraction-rang", "gpu_request/fraction-range"),
        ("memory-format", "gpu_request/memory-format, nv_fractions/memory-format?"),
        ("zzz", ""),
    ],
)
def test_an_unknown_rule_has_the_nearest_name(capsys: pytest.CaptureFixture[str], name: str, hint: str) -> None:
    assert main(["rule", name]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"there is no rule {name}")
    assert (f"did you mean {hint}" in error) if hint else ("did you mean" not in error)
