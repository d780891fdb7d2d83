"""YAML as Kubernetes reads it: JSON types only, and no duplicate keys.

PyYAML's own rules turn ``2026-01-01`` into a date, ``22:22`` into 1342, ``1e3`` and ``y`` into strings; Kubernetes
does not. Of duplicate keys PyYAML silently drops the first. Used for Bowline's configuration and for manifests.

A text may cost far more than its size: a few lines of aliases expand to millions of values, and a value of two
characters takes a kilobyte while it is read. Both are bounded by bytes: ``YamlBudget`` is what aliases may add to all
the documents of one run, and a document may not hold more values than ``_VALUES`` and one for each 8 bytes.
"""

import re
from dataclasses import dataclass
from typing import Any, cast

import yaml
from yaml.composer import Composer

_MERGE = "tag:yaml.org,2002:merge"
# What a value weighs beside its text.
_WEIGHT = 64
_VALUES, _BYTES_PER_VALUE = 20_000, 8


# libyaml where PyYAML has it, six times as fast. Only its parser: its composer ends the process at deep nesting.
_Parser: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(slots=True)
class YamlBudget:
    """The bytes that aliases and merges may still add to the documents of one run."""

    left: int = 4 * 2**20

    def spend(self, size: int) -> bool:
        """Take that many bytes; returns whether there were as many. If not, none is taken: nothing is expanded."""
        if size > self.left:
            return False
        self.left -= size
        return True


class StrictLoader(Composer, _Parser):  # type: ignore[misc]
    """Loads one or more documents; raises yaml.YAMLError with line and column."""

    yaml_implicit_resolvers: dict[str, Any] = {}
    bool_values = {**yaml.SafeLoader.bool_values, "y": True, "n": False}

    def __init__(self, text: str, budget: YamlBudget | None = None) -> None:
        _Parser.__init__(self, text)
        Composer.__init__(self)
        self._budget = YamlBudget() if budget is None else budget
        self._values_left = _VALUES + len(text) // _BYTES_PER_VALUE

    def compose_document(self) -> Any:
        """Compose the next document. Raises ConstructorError if its aliases expand to too much."""
        node = super().compose_document()
        if node is None:
            return None
        own_sizes: dict[int, int] = {}
        expanded = _size(node, {}, own_sizes)
        if not self._budget.spend(expanded - sum(own_sizes.values())):
            why = "aliases and merges add too much to the documents; write the values out"
            raise yaml.constructor.ConstructorError(None, None, why, node.start_mark)
        return node

    def compose_node(self, parent: Any, index: Any) -> Any:
        """Compose a value. Raises ConstructorError if the text holds too many for its size."""
        self._values_left -= 1
        if self._values_left < 0:
            why = "holds too many values for its size; a manifest has fewer"
            raise yaml.constructor.ConstructorError(None, None, why, self.peek_event().start_mark)
        return super().compose_node(parent, index)

    def on_duplicate(self, key: Any, mark: Any) -> None:
        """Reject a key that is given twice."""
        raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", mark)

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        """Construct a value. Raises ConstructorError for a text that its tag does not allow."""
        try:
            return super().construct_object(node, deep=deep)
        except (KeyError, IndexError, AttributeError, ValueError) as error:
            why = f"the value is no {node.tag.rpartition(':')[2]}"
            raise yaml.constructor.ConstructorError(None, None, why, node.start_mark) from error

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Report duplicate keys. ``<<`` is not a key: later keys may override merged ones."""
        keys: set[str] = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if key_node.tag == _MERGE:
                continue
            key = self.construct_object(key_node, deep=True)
            if str(key) in keys:
                self.on_duplicate(key, key_node.start_mark)
            keys.add(str(key))
        return cast(dict[Any, Any], super().construct_mapping(node, deep))


def _own_size(node: Any) -> int:
    return _WEIGHT + (len(node.value) if isinstance(node, yaml.ScalarNode) else 0)


def _children(node: Any) -> list[Any]:
    if isinstance(node, yaml.SequenceNode):
        return cast(list[Any], node.value)
    if isinstance(node, yaml.MappingNode):
        return [item for pair in node.value for item in pair]
    return []


def _size(node: Any, sizes: dict[int, int], own_sizes: dict[int, int]) -> int:
    """Return what a node expands to, in bytes. ``sizes``, ``own_sizes``: with and without its parts, by identity."""
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise yaml.constructor.ConstructorError(
                None, None, "an alias refers to a part that contains it; write the values out", node.start_mark
            )
        return sizes[id(node)]
    sizes[id(node)] = 0
    own_sizes[id(node)] = _own_size(node)
    size = own_sizes[id(node)] + sum([_size(child, sizes, own_sizes) for child in _children(node)])
    sizes[id(node)] = size
    return size


def _resolve(tag: str, pattern: str, first: str) -> None:
    add = cast(Any, StrictLoader).add_implicit_resolver
    add(f"tag:yaml.org,2002:{tag}", re.compile(f"^(?:{pattern})$"), list(first))


# The first match counts, so integers precede floats.
_resolve("bool", "[yYnN]|yes|Yes|YES|no|No|NO|true|True|TRUE|false|False|FALSE|on|On|ON|off|Off|OFF", "yYnNtTfFoO")
_resolve("int", "[-+]?(?:0b[01_]+|0o?[0-7_]+|0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)", "-+0123456789")
_resolve(
    "float",
    r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    "-+0123456789.",
)
_resolve("null", "~|null|Null|NULL|", "~nN")
StrictLoader.yaml_implicit_resolvers[""] = StrictLoader.yaml_implicit_resolvers["~"]  # an empty scalar is null
_resolve("merge", "<<", "<")
