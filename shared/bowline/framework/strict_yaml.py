"""YAML as Kubernetes reads it: JSON types only, and no duplicate keys.

PyYAML's own rules turn ``2026-01-01`` into a date, ``22:22`` into 1342 and ``1e3`` into a string; Kubernetes does
not. Of duplicate keys PyYAML silently drops the first. Used for Bowline's configuration and for manifests.

A few lines of aliases can expand to millions of values, so what they may add to a document is bounded.
"""

import re
from typing import Any, cast

import yaml
from yaml.composer import Composer

_MERGE = "tag:yaml.org,2002:merge"
# Values that aliases and merges may add to a document: about 10 MB.
MAX_ALIASED = 50_000


# libyaml where PyYAML has it, six times as fast. Only its parser: its composer ends the process at deep nesting.
_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class StrictLoader(Composer, _Parser):  # type: ignore[misc]
    """Loads one or more documents; raises yaml.YAMLError with line and column."""

    yaml_implicit_resolvers: dict[str, Any] = {}

    def __init__(self, text: str) -> None:
        _Parser.__init__(self, text)
        Composer.__init__(self)

    def compose_document(self) -> Any:
        """Compose the next document. Raises ConstructorError if its aliases expand to too many values."""
        node = super().compose_document()
        sizes: dict[int, int] = {}
        if node is not None and _size(node, sizes) - len(sizes) > MAX_ALIASED:
            why = f"aliases and merges may not add more than {MAX_ALIASED} values; write the values out"
            raise yaml.constructor.ConstructorError(None, None, why, node.start_mark)
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Reject duplicate keys. ``<<`` is not a key: later keys may override merged ones."""
        keys: set[str] = set()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if str(key) in keys:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice", key_node.start_mark
                )
            keys.add(str(key))
        return cast(dict[Any, Any], super().construct_mapping(node, deep))


def _size(node: Any, sizes: dict[int, int]) -> int:
    """Return how many values a node expands to. ``sizes``: of the nodes by identity."""
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise yaml.constructor.ConstructorError(
                None, None, "an alias refers to a part that contains it; write the values out", node.start_mark
            )
        return sizes[id(node)]
    sizes[id(node)] = 0
    size = 1
    if isinstance(node, yaml.SequenceNode):
        size += sum(_size(item, sizes) for item in node.value)
    elif isinstance(node, yaml.MappingNode):
        size += sum(_size(key, sizes) + _size(value, sizes) for key, value in node.value)
    sizes[id(node)] = size
    return size


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
