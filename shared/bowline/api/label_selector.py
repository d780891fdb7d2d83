"""Label selectors in the syntax of ``kubectl --selector``, parsed into a canonical form. Pure.

Equal selectors can be written in many ways. Here each key has one condition: its allowed or denied values, and
whether the key may be absent. Equal selectors thus have the same text, and overlapping selectors can be detected.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
_KEY = rf"(?:[a-z0-9](?:[a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_NAME}"
_VALUE = rf"(?:{_NAME})?"
_REQUIREMENT = re.compile(
    rf"""\s*(?:
    !\s*(?P<absent>{_KEY})
    | (?P<set>{_KEY})\s+(?P<operator>in|notin)\s*\((?P<values>[^()]*)\)
    | (?P<key>{_KEY})\s*(?P<equality>==|=|!=)\s*(?P<value>{_VALUE})
    | (?P<present>{_KEY})
    )\s*(?:,|$)""",
    re.VERBOSE,
)


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

    def text(self, key: str) -> str:
        """Return the condition in selector syntax."""
        if not self.may_be_present:
            return f"!{key}"
        if self.allowed_values is not None:
            values = sorted(self.allowed_values)
            return f"{key}={values[0]}" if len(values) == 1 else f"{key} in ({','.join(values)})"
        parts = [] if self.may_be_absent else [key]
        if len(self.excluded_values) == 1:
            parts.append(f"{key}!={next(iter(self.excluded_values))}")
        elif self.excluded_values:
            parts.append(f"{key} notin ({','.join(sorted(self.excluded_values))})")
        return ",".join(parts)


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Conditions by key; without any it selects everything. ``required_keys``: labels that an object must have."""

    conditions: Mapping[str, Condition]
    required_keys: frozenset[str] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        required_keys = frozenset(key for key, condition in self.conditions.items() if not condition.may_be_absent)
        object.__setattr__(self, "required_keys", required_keys)

    def __str__(self) -> str:
        """The canonical text, the same for all equal selectors; empty if it selects everything."""
        return ",".join(condition.text(key) for key, condition in sorted(self.conditions.items()))

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Return whether an object with these labels is selected."""
        # An object has few labels, a selector perhaps hundreds of conditions: those of absent labels cost nothing.
        return self.required_keys <= labels.keys() and all(
            self.conditions[key].admits(labels[key]) for key in self.conditions.keys() & labels.keys()
        )

    def overlaps(self, selector: "LabelSelector") -> bool:
        """Return whether both can select the same object."""
        shared = self.conditions.keys() & selector.conditions.keys()
        return all(self.conditions[key].intersect(selector.conditions[key]).possible for key in shared)


def parse_label_selector(text: str) -> LabelSelector:
    """Parse a selector; an empty one selects everything.

    Raises ValueError for a syntax error, with its position, and for a selector that selects nothing.
    """
    conditions: dict[str, Condition] = {}
    position = 0
    end = len(text.rstrip())
    while position < end:
        match = _REQUIREMENT.match(text, position)
        if match is None:
            raise ValueError(
                f"label selector {text!r}: cannot be understood from {text[position:].strip()!r} on; "
                "write requirements such as key=value, key!=value, key in (a,b), key notin (a,b), key, !key"
            )
        key, condition = _condition(match, text)
        conditions[key] = conditions.get(key, Condition()).intersect(condition)
        position = match.end()
    if text.rstrip().endswith(","):
        raise ValueError(f"label selector {text!r}: ends with a comma; remove it")
    for key, condition in conditions.items():
        if not condition.possible:
            raise ValueError(f"label selector {text!r}: no object can fulfil what it requires of {key}")
    return LabelSelector(conditions)


def _condition(match: "re.Match[str]", text: str) -> tuple[str, Condition]:
    if absent := match["absent"]:
        return absent, Condition(may_be_present=False)
    if present := match["present"]:
        return present, Condition(may_be_absent=False)
    if key := match["key"]:
        values, denies = frozenset((match["value"],)), match["equality"] == "!="
    else:
        key, denies = match["set"], match["operator"] == "notin"
        values = frozenset(value.strip() for value in match["values"].split(","))
        wrong = next((value for value in sorted(values) if not re.fullmatch(_VALUE, value)), None)
        if wrong is not None:
            raise ValueError(f"label selector {text!r}: {wrong!r} can be no label's value")
    return key, Condition(excluded_values=values) if denies else Condition(allowed_values=values, may_be_absent=False)
