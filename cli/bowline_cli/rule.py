"""``bowline rule``: what a rule demands, with examples."""

import argparse
import sys

from bowline_cli.rules import all_rules, explain_rule, listed_rules, similar_rules

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
        print(listed_rules())
    elif name in rules:
        print(explain_rule(rules[name]))
    else:
        similar = ", ".join(similar_rules(name, list(rules)))
        print(f"there is no rule {name}{f'; did you mean {similar}?' if similar else ''}", file=sys.stderr)
        return EXIT_NO_RULE
    return EXIT_EXPLAINED
