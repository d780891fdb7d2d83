"""Where a field stands in a file. A document is composed once more, only for an object that has findings."""

from dataclasses import dataclass
from typing import Any

import yaml

from bowline.api.field_error import join_path
from bowline.framework.strict_yaml import StrictLoader


@dataclass(frozen=True, slots=True)
class DocumentText:
    """A document: a text and its number among the documents in it. ``path``: of the object in the document."""

    text: str
    index: int
    path: str = ""

    def below(self, path: str) -> "DocumentText":
        """Return the place of a part of this object."""
        return DocumentText(self.text, self.index, join_path(self.path, path))

    def line_of(self, path: str, default: int) -> int:
        """Return the line of a field, or of the nearest one around it that exists; ``default`` if the text is not
        YAML.
        """
        loader = StrictLoader(self.text)
        try:
            node: Any = None
            for _ in range(self.index + 1):
                node = loader.get_node() if loader.check_node() else None
        except (yaml.YAMLError, RecursionError):
            return default
        finally:
            loader.dispose()
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
