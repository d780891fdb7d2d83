"""Kubernetes' selectors over labels, evaluated on raw objects. Pure.

Three kinds relate a pod's volumes and devices to its node: node selectors (the node affinity of a PersistentVolume,
the nodes on which an allocation of devices can be used), label selectors, and the allowed topologies of a
StorageClass. An invalid expression (an unknown operator, a bound that is not a number) selects nothing, as in
Kubernetes itself: a pod with the wrong volume or device is worse than one with a reported failure.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# As long as the value of a label: the bound of a volume may have any text.
_INTEGER = re.compile(r"[+-]?[0-9]{1,63}")

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Node:
    """The parts of a node that selectors read."""

    name: str
    labels: Labels = field(default_factory=dict)


def node_selector_admits(selector: Mapping[str, Any] | None, node: Node) -> bool:
    """Return whether a NodeSelector admits the node; None admits all."""
    return selector is None or any(_term_admits(term, node) for term in _terms(selector))


def reads_labels(selector: Mapping[str, Any] | None) -> bool:
    """Return whether a NodeSelector depends on a node's labels; most name a node only."""
    return selector is not None and any(term.get("matchExpressions") for term in _terms(selector))


def required_value(selector: Mapping[str, Any] | None, label: str) -> str | None:
    """Return the only value that the label has on every node a NodeSelector admits; None if there may be others."""
    if selector is None or len(_terms(selector)) != 1:
        return None
    for expression in _terms(selector)[0].get("matchExpressions") or ():
        values: Sequence[str] = expression.get("values") or ()
        if expression.get("key") == label and expression.get("operator") == "In" and len(values) == 1:
            return values[0]
    return None


def _terms(selector: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return selector.get("nodeSelectorTerms") or ()


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """What each label must be. ``allowed``: one of these values; ``excluded``: none of these, if it is there."""

    allowed: Mapping[str, frozenset[str]]
    excluded: Mapping[str, frozenset[str]]
    required_keys: frozenset[str]
    absent_keys: frozenset[str]

    def selects(self, labels: Labels) -> bool:
        """Return whether an object with these labels is selected."""
        # An object has few labels, a selector perhaps hundreds of requirements: those of absent labels cost nothing.
        keys = labels.keys()
        return (
            self.required_keys <= keys
            and self.absent_keys.isdisjoint(keys)
            and all(labels[key] in values for key, values in self.allowed.items())
            and not any(labels[key] in self.excluded[key] for key in self.excluded.keys() & keys)
        )


# Requirements of a label selector and their values, together: one with more is not evaluated.
MAX_REQUIREMENTS = 512


def is_too_large(selector: Mapping[str, Any] | None) -> bool:
    """Return whether a label selector has more than ``MAX_REQUIREMENTS`` requirements and values."""
    if not selector:
        return False
    expressions = selector.get("matchExpressions") or ()
    size = len(selector.get("matchLabels") or ()) + len(expressions)
    return size > MAX_REQUIREMENTS or (
        size + sum(len(expression.get("values") or ()) for expression in expressions) > MAX_REQUIREMENTS
    )


def compile_selector(selector: Mapping[str, Any] | None) -> LabelSelector | None:
    """Return a LabelSelector in the form in which it is evaluated; None if it is invalid and selects nothing.

    An absent or empty one selects everything. Only call it if it is not too large.
    """
    allowed: dict[str, frozenset[str]] = {}
    excluded: dict[str, frozenset[str]] = {}
    required_keys, absent_keys = set[str](), set[str]()
    equal: Labels = (selector or {}).get("matchLabels") or {}
    expressions = [{"key": key, "operator": "In", "values": [value]} for key, value in equal.items()]
    for expression in (*expressions, *((selector or {}).get("matchExpressions") or ())):
        key, values = expression.get("key", ""), frozenset(expression.get("values") or ())
        match expression.get("operator"):
            case "In":
                allowed[key] = allowed.get(key, values) & values
                required_keys.add(key)
            case "NotIn":
                excluded[key] = excluded.get(key, values) | values
            case "Exists":
                required_keys.add(key)
            case "DoesNotExist":
                absent_keys.add(key)
            case _:
                return None
    return LabelSelector(allowed, excluded, frozenset(required_keys), frozenset(absent_keys))


def selector_admits(selector: Mapping[str, Any] | None, labels: Labels) -> bool:
    """Return whether the labels match a label selector; an absent or empty one matches all."""
    compiled = compile_selector(selector)
    return compiled is not None and compiled.selects(labels)


def topologies_admit(terms: Sequence[Mapping[str, Any]], labels: Labels) -> bool:
    """Return whether a StorageClass with these ``allowedTopologies`` admits nodes with the labels; none admit all."""
    return not terms or any(_topology_admits(term, labels) for term in terms)


def _term_admits(term: Mapping[str, Any], node: Node) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    # The only selectable field of a node.
    node_fields = {"metadata.name": node.name}
    return all(_admits(expression, node.labels) for expression in expressions) and all(
        _admits(expression, node_fields) for expression in fields
    )


def _topology_admits(term: Mapping[str, Any], labels: Labels) -> bool:
    expressions = term.get("matchLabelExpressions") or ()
    return bool(expressions) and all(
        labels.get(expression.get("key", "")) in (expression.get("values") or ()) for expression in expressions
    )


def _admits(expression: Mapping[str, Any], labels: Labels) -> bool:
    value = labels.get(expression.get("key", ""))
    values: Sequence[str] = expression.get("values") or ()
    match expression.get("operator"):
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            return _compares(value, values, operator)
    return False


def _compares(value: str | None, values: Sequence[str], operator: str) -> bool:
    label_number, bounds = int64_of(value), [int64_of(bound) for bound in values]
    if label_number is None or len(bounds) != 1 or bounds[0] is None:
        return False
    return label_number > bounds[0] if operator == "Gt" else label_number < bounds[0]


def int64_of(text: Any) -> int | None:
    """Return the int64 that Go reads in a text; None if it reads none. Python reads ``1_0``, and any size."""
    if not isinstance(text, str) or not _INTEGER.fullmatch(text):
        return None
    number = int(text)
    return number if -(2**63) <= number < 2**63 else None
