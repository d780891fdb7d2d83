"""Kubernetes' selectors over labels, evaluated on raw objects. Pure.

Three kinds relate a pod's volumes and devices to its node: node selectors (the node affinity of a PersistentVolume,
the nodes on which an allocation of devices can be used), label selectors, and the allowed topologies of a
StorageClass. An invalid expression (an unknown operator, a bound that is not a number) selects nothing, as in
Kubernetes itself: a pod with the wrong volume or device is worse than one with a reported failure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
class Condition:
    """The condition on one key. ``allowed_values``: None for any. The key has none of ``excluded_values``."""

    allowed_values: frozenset[str] | None = None
    excluded_values: frozenset[str] = frozenset()
    may_be_present: bool = True
    may_be_absent: bool = True

    @property
    def possible(self) -> bool:
        """Whether any object can satisfy it."""
        return self.may_be_absent or (self.may_be_present and self.allowed_values != frozenset())

    def intersect(self, condition: "Condition") -> "Condition":
        """Return the conjunction with another condition on the key."""
        excluded_values = self.excluded_values | condition.excluded_values
        sets = [values for values in (self.allowed_values, condition.allowed_values) if values is not None]
        allowed_values = frozenset.intersection(*sets) - excluded_values if sets else None
        present = self.may_be_present and condition.may_be_present
        absent = self.may_be_absent and condition.may_be_absent
        # Denied values are redundant beside allowed ones, and if the key must be absent.
        excluded_values = frozenset() if allowed_values is not None or not present else excluded_values
        return Condition(allowed_values, excluded_values, present, absent)

    def admits(self, value: str | None) -> bool:
        """Return whether a label may have this value; None is the absence of the label."""
        if value is None:
            return self.may_be_absent
        return (
            self.may_be_present
            and value not in self.excluded_values
            and (self.allowed_values is None or value in self.allowed_values)
        )


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Conditions by key; without any it selects everything. ``required_keys``: labels that an object must have."""

    conditions: Mapping[str, Condition]
    required_keys: frozenset[str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        required_keys = frozenset(key for key, condition in self.conditions.items() if not condition.may_be_absent)
        object.__setattr__(self, "required_keys", required_keys)

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Return whether an object with these labels is selected."""
        # An object has few labels, a selector perhaps hundreds of conditions: those of absent labels cost nothing.
        return self.required_keys <= labels.keys() and all(
            self.conditions[key].admits(labels[key]) for key in self.conditions.keys() & labels.keys()
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
    """Return a LabelSelector in the form in which it is evaluated; None if it selects nothing.

    An absent or empty one selects everything. Only call it if it is not too large.
    """
    conditions: dict[str, Condition] = {}
    expressions: Sequence[Mapping[str, Any]] = (selector or {}).get("matchExpressions") or ()
    equal: Labels = (selector or {}).get("matchLabels") or {}
    parts = [(expression.get("key", ""), _condition(expression)) for expression in expressions]
    parts += [(key, Condition(frozenset((value,)), may_be_absent=False)) for key, value in equal.items()]
    for key, condition in parts:
        if condition is None:
            return None
        conditions[key] = conditions.get(key, Condition()).intersect(condition)
    return LabelSelector(conditions) if all(condition.possible for condition in conditions.values()) else None


def selector_admits(selector: Mapping[str, Any] | None, labels: Labels) -> bool:
    """Return whether the labels match a label selector; an absent or empty one matches all."""
    compiled = compile_selector(selector)
    return compiled is not None and compiled.selects(labels)


def _condition(expression: Mapping[str, Any]) -> Condition | None:
    """Return the condition of a requirement; None if it is invalid."""
    values = frozenset(expression.get("values") or ())
    match expression.get("operator"):
        case "In":
            return Condition(values, may_be_absent=False)
        case "NotIn":
            return Condition(excluded_values=values)
        case "Exists":
            return Condition(may_be_absent=False)
        case "DoesNotExist":
            return Condition(may_be_present=False)
    return None


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
    try:
        (bound,) = values
        label_number, bound_number = int(value or ""), int(bound)
    except ValueError:
        return False
    return label_number > bound_number if operator == "Gt" else label_number < bound_number
