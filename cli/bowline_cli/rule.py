"""``bowline rule``: what a rule demands, with examples; and all rules, for docs/rules.md too.

Each rule belongs to the module that applies it; this one only collects them.
"""

import argparse
import sys
from difflib import get_close_matches

from bowline.api import bindrequest
from bowline.api.rule import Rule
from bowline.framework import (
    admission,
    config,
    plugin_class,
    plugin_order,
    registry,
    structure,
    workloads,
)
from bowline.framework.interface.plugin import AdmissionPlugin
from bowline.framework.registry import installed_plugins
from bowline.kube import binding
from bowline.plugins.catalog import BUILTINS
from bowline_cli import manifests, schema
from bowline_webhook import repeats, review, server
from bowline_webhook import workloads as workload_review

EXIT_EXPLAINED, EXIT_NO_RULE = 0, 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Explain the rule that a denial or a warning names in parentheses, such as gpu_request/fraction-range. "
        "Exit status: 0 explained, 2 no such rule, or bad usage."
    )
    parser.add_argument("rule", metavar="RULE", nargs="?", default="", help="its id; without one list all rules")
    parser.set_defaults(run=lambda options: explain(options.rule))


def explain(name: str) -> int:
    """Print the text about a rule, or a line for each rule without a name; returns the exit status."""
    rules = all_rules()
    if not name:
        width = max(map(len, rules))
        for rule in rules.values():
            print(f"{rule.id.ljust(width)}  {rule.severity}  {rule.meaning.replace('`', '')}")
    elif name in rules:
        print(explain_rule(rules[name]))
    else:
        similar = ", ".join(similar_rules(name, list(rules)))
        print(f"there is no rule {name}{f'; did you mean {similar}?' if similar else ''}", file=sys.stderr)
        return EXIT_NO_RULE
    return EXIT_EXPLAINED


_OF_OBJECTS = (
    *bindrequest.RULES,
    *repeats.RULES,
    *admission.RULES,
    *structure.RULES,
    *workload_review.RULES,
    *schema.RULES,
)
_OF_CONFIGURATION = (
    *config.RULES,
    *workloads.RULES,
    *registry.RULES,
    *plugin_order.RULES,
)
_OF_COMPONENTS = (*plugin_class.RULES, *binding.RULES, *review.RULES, *server.RULES, *manifests.RULES)


def admission_rules() -> tuple[Rule, ...]:
    """Return the rules by which objects are denied or get warnings: of the built-in plugins, then of the others."""
    plugins = [builtin.plugin for builtin in BUILTINS if issubclass(builtin.plugin, AdmissionPlugin)]
    return (*(rule for plugin in plugins for rule in plugin.rules), *_OF_OBJECTS)


def all_rules() -> dict[str, Rule]:
    """Return every rule by its id; those of installed plugins included.

    An installed plugin that cannot be loaded has none: the configuration that names it reports why.
    """
    rules = [*admission_rules(), *_OF_CONFIGURATION, *_OF_COMPONENTS]
    for entry_point in installed_plugins():
        try:
            rules += getattr(entry_point.load(), "rules", ())
        except (Exception, SystemExit):  # noqa: BLE001, S112 - foreign code; reported where it is configured
            continue
    return {rule.id: rule for rule in rules if isinstance(rule, Rule)}


def explain_rule(rule: Rule) -> str:
    """Return the text about a rule."""
    lines = [f"{rule.id} {rule.severity}: {rule.meaning.replace('`', '')}"]
    for label, example in (("invalid", rule.invalid), ("valid", rule.valid)):
        lines += [f"  {label}:", *(f"    {line}" for line in example.splitlines())] if example else []
    return "\n".join(lines)


def similar_rules(name: str, ids: list[str]) -> list[str]:
    """Return the ids that resemble the name, which may lack the plugin."""
    by_last_part: dict[str, list[str]] = {}
    for rule_id in ids:
        by_last_part.setdefault(rule_id.rpartition("/")[2], []).append(rule_id)
    last_parts = get_close_matches(name.rpartition("/")[2], by_last_part, 3, 0.6)
    exact = by_last_part.get(name, [])
    return (exact or [rule_id for part in last_parts for rule_id in by_last_part[part]])[:3]
