"""Where a field stands in a file. A text is composed once more, only if an object in it has findings."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from bowline.api.field_error import join_path
from bowline.framework.strict_yaml import StrictLoader


@dataclass(slots=True)
class TextNodes:
    """The nodes of a text, by document; composed when a line is asked for first, and only once."""

    text: str
    _nodes: Sequence[Any] | None = field(default=None, repr=False)

    def node(self, index: int) -> Any:
        """Return the node of a document; None if the text is not YAML up to there."""
        if self._nodes is None:
            self._nodes = tuple(self._compose())
        return self._nodes[index] if index < len(self._nodes) else None

    def _compose(self) -> Iterator[Any]:
        loader = StrictLoader(self.text)
        try:
            while loader.check_node():
                yield loader.get_node()
        except (yaml.YAMLError, RecursionError):
            return
        finally:
            loader.dispose()


@dataclass(frozen=True, slots=True)
class DocumentText:
    """A document: a text and its number among the documents in it. ``path``: of the object in the document."""

    text: TextNodes
    index: int
    path: str = ""

    def below(self, path: str) -> "DocumentText":
        """Return the place of a part of this object."""
        return replace(self, path=join_path(self.path, path))

    def line_of(self, path: str, default: int) -> int:
        """Return the line of a field, or of the nearest one around it that exists; ``default`` if the text is not
        YAML.
        """
        node = self.text.node(self.index)
        return default if node is None else _line(node, join_path(self.path, path))


def _line(node: Any, path: str) -> int:
    """Return the line of the field below a node."""
    line = node.start_mark.line + 1
    while path:
        step = _step(node, path)
        if step is None:
            break
        line, node, path = step
    return int(line)


def _step(node: Any, path: str) -> tuple[int, Any, str] | None:
    """Return line, node and remaining path of the first field of a path; None if the node does not have it."""
    if isinstance(node, yaml.MappingNode):
        # The longest key first: a key may contain dots and brackets.
        pairs = sorted(node.value, key=lambda pair: -len(str(pair[0].value)))
        for key, value in pairs:
            for form in (str(key.value), f"[{key.value}]"):
                rest = path.removeprefix(form)
                if path.startswith(form) and (not rest or rest[0] in ".["):
                    return key.start_mark.line + 1, value, rest.removeprefix(".")
    elif isinstance(node, yaml.SequenceNode) and path.startswith("["):
        number, _, rest = path[1:].partition("]")
        if number.isdigit() and int(number) < len(node.value):
            item = node.value[int(number)]
            return item.start_mark.line + 1, item, rest.removeprefix(".")
    return None
