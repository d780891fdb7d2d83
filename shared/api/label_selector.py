"""Label selectors in the syntax of ``kubectl --selector``, parsed into a canonical form. Pure.

Equal selectors can be written in many ways. Here each key has one condition: its allowed or denied values, and
whether the key may be absent. Equal selectors thus have the same text, and overlapping selectors can be detected.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

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
    """The condition on one key. ``allowed``: the only values it may have (None: any); ``denied``: excluded values."""

    allowed: frozenset[str] | None = None
    denied: frozenset[str] = frozenset()
    may_be_present: bool = True
    may_be_absent: bool = True

    @property
    def possible(self) -> bool:
        """Whether any object can satisfy it."""
        return self.may_be_absent or (self.may_be_present and self.allowed != frozenset())

    def both(self, other: "Condition") -> "Condition":
        """Return the conjunction of both conditions."""
        denied = self.denied | other.denied
        sets = [allowed for allowed in (self.allowed, other.allowed) if allowed is not None]
        allowed = frozenset.intersection(*sets) - denied if sets else None
        present = self.may_be_present and other.may_be_present
        absent = self.may_be_absent and other.may_be_absent
        # Denied values are redundant beside allowed ones, and if the key must be absent.
        denied = frozenset() if allowed is not None or not present else denied
        return Condition(allowed, denied, present, absent)

    def admits(self, value: str | None) -> bool:
        """Return whether a label may have this value; None is the absence of the label."""
        if value is None:
            return self.may_be_absent
        return self.may_be_present and value not in self.denied and (self.allowed is None or value in self.allowed)

    def text(self, key: str) -> str:
        """Return the condition in selector syntax."""
        if not self.may_be_present:
            return f"!{key}"
        if self.allowed is not None:
            values = sorted(self.allowed)
            return f"{key}={values[0]}" if len(values) == 1 else f"{key} in ({','.join(values)})"
        parts = [] if self.may_be_absent else [key]
        if len(self.denied) == 1:
            parts.append(f"{key}!={next(iter(self.denied))}")
        elif self.denied:
            parts.append(f"{key} notin ({','.join(sorted(self.denied))})")
        return ",".join(parts)


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Conditions by key; without any it selects everything."""

    conditions: Mapping[str, Condition]

    def __str__(self) -> str:
        """The canonical text, the same for all equal selectors; empty if it selects everything."""
        return ",".join(condition.text(key) for key, condition in sorted(self.conditions.items()))

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Return whether an object with these labels is selected."""
        return all(condition.admits(labels.get(key)) for key, condition in self.conditions.items())

    def overlaps(self, other: "LabelSelector") -> bool:
        """Return whether both can select the same object."""
        shared = self.conditions.keys() & other.conditions.keys()
        return all(self.conditions[key].both(other.conditions[key]).possible for key in shared)


def parse_label_selector(text: str) -> LabelSelector:
    """Parse a selector; an empty one selects everything.

    Raises ValueError for a syntax error, with its position, and for a selector that selects nothing.
    """
    conditions: dict[str, Condition] = {}
    position = 0
    while text[position:].strip():
        found = _REQUIREMENT.match(text, position)
        if found is None:
            raise ValueError(
                f"label selector {text!r}: cannot be understood from {text[position:].strip()!r} on; "
                "write requirements such as key=value, key!=value, key in (a,b), key notin (a,b), key, !key"
            )
        key, condition = _condition(found, text)
        conditions[key] = conditions.get(key, Condition()).both(condition)
        position = found.end()
    if text.rstrip().endswith(","):
        raise ValueError(f"label selector {text!r}: ends with a comma; remove it")
    for key, condition in conditions.items():
        if not condition.possible:
            raise ValueError(f"label selector {text!r}: no object can fulfil what it requires of {key}")
    return LabelSelector(conditions)


def _condition(found: "re.Match[str]", text: str) -> tuple[str, Condition]:
    if absent := found["absent"]:
        return absent, Condition(may_be_present=False)
    if present := found["present"]:
        return present, Condition(may_be_absent=False)
    if key := found["key"]:
        values, denies = frozenset((found["value"],)), found["equality"] == "!="
    else:
        key, denies = found["set"], found["operator"] == "notin"
        values = frozenset(value.strip() for value in found["values"].split(","))
        wrong = next((value for value in sorted(values) if not re.fullmatch(_VALUE, value)), None)
        if wrong is not None:
            raise ValueError(f"label selector {text!r}: {wrong!r} can be no label's value")
    return key, Condition(denied=values) if denies else Condition(allowed=values, may_be_absent=False)
