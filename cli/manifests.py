"""Manifest files: from text to the objects that ``kubectl apply -f`` would send.

YAML with any number of documents, or JSON; a List is expanded. Unreadable text raises an ``UnreadableError`` with
file and line, because a silently skipped file would seem to have passed.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from shared.framework.strict_yaml import StrictLoader

STANDARD_INPUT = "-"


class UnreadableError(Exception):
    """A file is missing or not a manifest; the message contains file, line and error."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object and its file. ``object`` may be modified; no part of it is shared."""

    file: str
    object: dict[str, Any]

    @property
    def group(self) -> str:
        """API group; empty for the core group."""
        return str(self.object["apiVersion"]).rpartition("/")[0]

    @property
    def kind(self) -> str:
        """Kind of the object."""
        return str(self.object["kind"])


def read_manifests(file: str) -> list[Manifest]:
    """Read a file, or standard input for ``-``. Raises UnreadableError."""
    try:
        content = sys.stdin.buffer.read() if file == STANDARD_INPUT else Path(file).read_bytes()
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise UnreadableError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{file}: is not UTF-8 text (byte {error.start})") from error
    return parse_manifests(file, text)


def parse_manifests(file: str, text: str) -> list[Manifest]:
    """Return the objects in the text, in its order. Raises UnreadableError."""
    manifests: list[Manifest] = []
    try:
        for line, document in _documents(text):
            # The JSON round trip leaves only JSON types and string keys, and copies parts that YAML anchors share.
            plain = json.loads(json.dumps(document, allow_nan=False))
            manifests += _expand(file, f"{file}: line {line}", plain, {})
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise UnreadableError(f"{file}: {where}{error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise UnreadableError(f"{file}: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise UnreadableError(f"{file}: is nested too deeply") from error
    except (TypeError, ValueError) as error:
        raise UnreadableError(f"{file}: holds what JSON cannot: {error}") from error
    return manifests


def _documents(text: str) -> Iterator[tuple[int, Any]]:
    """Yield each non-empty document with the line in which it begins."""
    if text.lstrip().startswith("{"):
        try:
            document = json.loads(text, object_pairs_hook=_unique)
        except ValueError:
            pass  # may be YAML in flow style; if it is neither, the YAML error contains the line
        else:
            yield 1, document
            return
    loader = StrictLoader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # noqa: S101 - check_node has returned True
            document = loader.construct_document(node)
            if document is not None:
                yield node.start_mark.line + 1, document
    finally:
        loader.dispose()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key is given twice")
    return mapping


def _expand(file: str, where: str, document: Any, defaults: dict[str, str]) -> Iterator[Manifest]:
    """Yield the document itself, or the items of a List, which need not repeat their kind. Raises UnreadableError."""
    if not isinstance(document, dict):
        raise UnreadableError(f"{where}: must be an object with apiVersion and kind")
    document = {**defaults, **document}
    for field in ("apiVersion", "kind"):
        if not isinstance(document.get(field), str) or not document[field]:
            raise UnreadableError(f"{where}: {field} must be given, as a string")
    kind = document["kind"]
    if not kind.endswith("List") or "items" not in document:
        yield Manifest(file, document)
        return
    items = document["items"] or []
    if not isinstance(items, list):
        raise UnreadableError(f"{where}: items of a {kind} must be a list")
    item_defaults = (
        {} if kind == "List" else {"apiVersion": document["apiVersion"], "kind": kind.removesuffix("List")}
    )
    for index, item in enumerate(items):
        yield from _expand(file, f"{where}, items[{index}]", item, item_defaults)
