"""A chart with its values, and the objects in a rendered text (pure; shared by both ways to run Helm)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

# libyaml where PyYAML has it, eight times as fast.
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class ChartRelease:
    """A chart under a release name, with its values."""

    name: str
    chart: Path
    namespace: str
    values_files: Sequence[Path] = ()
    set_values: Mapping[str, object] = field(default_factory=dict)


def documents(text: str) -> list[dict[str, Any]]:
    """The objects in a rendered text, split as Helm splits: `---# comment` also separates."""
    parts = re.split(r"(?m)^---", text)
    documents = [yaml.load(part, _Loader) for part in parts if part.strip()]  # noqa: S506 - a safe one
    return [document for document in documents if document]
