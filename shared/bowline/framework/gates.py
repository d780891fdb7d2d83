"""Feature gates: switches of alpha and beta behaviour, fixed at startup.

A plugin as a whole is switched by ``enabled`` in the configuration; a gate only guards behaviour that may still
change. There is one registry, so that an unknown name is rejected wherever it is used.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bowline.api.field_error import FieldError
from bowline.api.rule import Rule

FEATURE_GATE: Final = Rule("config/feature-gate", "a feature gate is unknown or locked")
RULES: Final = (FEATURE_GATE,)


class Stage(StrEnum):
    """Maturity of a behaviour. A GA gate is locked on, then removed."""

    ALPHA = "alpha"
    BETA = "beta"
    GA = "ga"


@dataclass(frozen=True, slots=True)
class Gate:
    """One feature gate."""

    name: str
    stage: Stage
    default: bool
    description: str


GANG_BINDING = "GangBinding"

GATES: tuple[Gate, ...] = (
    Gate(
        GANG_BINDING,
        Stage.ALPHA,
        default=False,
        description="The pods of a PodGroup are bound only when as many as it requires are prepared or bound.",
    ),
)


def resolve_gates(
    settings: Mapping[str, bool], definitions: Iterable[Gate]
) -> tuple[dict[str, bool], list[FieldError]]:
    """Merge the configured values over the defaults. Returns every gate's value, and all errors of ``settings``."""
    gates = {gate.name: gate for gate in definitions}
    values = {name: gate.default for name, gate in gates.items()}
    errors = []
    for name, value in settings.items():
        path = f"featureGates.{name}"
        if name not in gates:
            names = ", ".join(sorted(gates)) or "none exist in this version"
            errors.append(FieldError(FEATURE_GATE, path, value, f"is no feature gate; known: {names}"))
        elif gates[name].stage is Stage.GA and not value:
            errors.append(FieldError(FEATURE_GATE, path, value, "is generally available and stays on"))
        else:
            values[name] = value
    return values, errors


def parse_gates_flag(text: str) -> dict[str, bool]:
    """Parse ``A=true,B=false``. Raises ValueError naming the invalid entry."""
    values = {}
    for entry in filter(None, text.split(",")):
        name, _, word = entry.partition("=")
        if not name or word not in ("true", "false"):
            raise ValueError(f"--feature-gates: {entry!r} must be NAME=true or NAME=false")
        values[name] = word == "true"
    return values
