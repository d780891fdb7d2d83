"""YAML as Kubernetes reads it: JSON types only, and no duplicate keys.

PyYAML's own rules turn ``2026-01-01`` into a date, ``22:22`` into 1342 and ``1e3`` into a string; Kubernetes does
not. Of duplicate keys PyYAML silently drops the first. Used for Bowline's configuration and for manifests.
"""

import re
from typing import Any, cast

import yaml

_MERGE = "tag:yaml.org,2002:merge"
# Maximum number of values that aliases may add: no real object has as many, and a few lines could exhaust memory.
_MAX_REPEATED = 1_000_000


class StrictLoader(yaml.SafeLoader):
    """Loads one or more documents; raises yaml.YAMLError with line and column."""

    yaml_implicit_resolvers = {}

    def construct_document(self, node: Any) -> Any:
        """Reject a document with excessive aliases before expanding it."""
        sizes: dict[int, int] = {}
        if _size(node, sizes) - len(sizes) > _MAX_REPEATED:
            raise yaml.constructor.ConstructorError(
                None, None, "its aliases make more than a million values of it; write less of them", node.start_mark
            )
        return super().construct_document(node)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Reject duplicate keys. ``<<`` is not a key: later keys may override merged ones."""
        seen: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if str(key) in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            seen.add(str(key))
        return super().construct_mapping(node, deep)


def _size(node: Any, sizes: dict[int, int]) -> int:
    """Return the number of nodes with every alias expanded; a recursive alias counts once."""
    if id(node) not in sizes:
        sizes[id(node)] = 1
        if isinstance(node, yaml.SequenceNode):
            sizes[id(node)] += sum(_size(child, sizes) for child in node.value)
        elif isinstance(node, yaml.MappingNode):
            sizes[id(node)] += sum(_size(child, sizes) for pair in node.value for child in pair)
    return sizes[id(node)]


def _resolve(tag: str, pattern: str, first: str) -> None:
    add = cast(Any, StrictLoader).add_implicit_resolver
    add(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), list(first))


# The first match counts, so integers precede floats.
_resolve("bool", "yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO")
_resolve("int", "[-+]?(?:0b[01_]+|0o?[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)", "-+0123456789")
_resolve(
    "float",
    r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    "-+0123456789.",
)
_resolve("null", "~|null|Null|NULL|", "~nN")
StrictLoader.yaml_implicit_resolvers[""] = StrictLoader.yaml_implicit_resolvers["~"]  # an empty scalar is null
_resolve("merge", "<<", "<")
