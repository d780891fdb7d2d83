"""Manifest files: from text to the objects that ``kubectl apply -f`` would send.

YAML with any number of documents, JSON, a JSON list, or one JSON object per line, in UTF-8 or UTF-16; a List is
expanded, and a directory is searched. Unreadable text raises an ``UnreadableError`` with file and line, because a
silently skipped file would seem to have passed.
"""

import codecs
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from bowline.framework.strict_yaml import StrictLoader

STANDARD_INPUT = "-"
SUFFIXES = (".yaml", ".yml", ".json")
_BYTE_ORDER_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class UnreadableError(Exception):
    """A file is missing or not a manifest; the message contains file, line and error."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object, its file, and the line in which its document begins. ``object`` may be modified; no part of it is
    shared.
    """

    file: str
    line: int
    object: dict[str, Any]

    @property
    def group(self) -> str:
        """API group; empty for the core group."""
        return str(self.object["apiVersion"]).rpartition("/")[0]

    @property
    def kind(self) -> str:
        """Kind of the object."""
        return str(self.object["kind"])


def files_in(path: str) -> list[str]:
    """Return the path, or of a directory the manifest files in it and below, in order of their names."""
    if path == STANDARD_INPUT or not Path(path).is_dir():
        return [path]
    return [str(file) for file in sorted(Path(path).rglob("*")) if file.suffix in SUFFIXES and file.is_file()]


def read_manifests(file: str) -> list[Manifest]:
    """Read a file, or standard input for ``-``. Raises UnreadableError."""
    try:
        content = sys.stdin.buffer.read() if file == STANDARD_INPUT else Path(file).read_bytes()
        text = content.decode("utf-16" if content.startswith(_BYTE_ORDER_MARKS) else "utf-8-sig")
    except OSError as error:
        raise UnreadableError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{file}: is not text in UTF-8 or UTF-16 (byte {error.start})") from error
    return parse_manifests(file, text)


def parse_manifests(file: str, text: str) -> list[Manifest]:
    """Return the objects in the text, in its order. Raises UnreadableError."""
    manifests: list[Manifest] = []
    try:
        for line, document in _documents(text):
            # The JSON round trip leaves only JSON types and string keys, and copies parts that YAML anchors share.
            plain = json.loads(json.dumps(document, allow_nan=False))
            for item in plain if isinstance(plain, list) else [plain]:
                manifests += _expand(file, line, f"{file}: line {line}", item, {})
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        hint = "; it looks like a template: review the output of helm template" if "{{" in text else ""
        raise UnreadableError(f"{file}: {where}{error.problem or error.context}{hint}") from error
    except yaml.YAMLError as error:
        raise UnreadableError(f"{file}: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise UnreadableError(f"{file}: is nested too deeply") from error
    except (TypeError, ValueError) as error:
        raise UnreadableError(f"{file}: holds what JSON cannot: {error}") from error
    return manifests


def _documents(text: str) -> Iterator[tuple[int, Any]]:
    """Yield each non-empty document with the line in which it begins."""
    if text.lstrip().startswith(("{", "[")):
        try:
            documents = list(_json_documents(text))
        except ValueError:
            pass  # may be YAML in flow style; if it is neither, the YAML error contains the line
        else:
            yield from documents
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


def _json_documents(text: str) -> Iterator[tuple[int, Any]]:
    """Yield each JSON value with its line. Raises ValueError."""
    decoder, at = json.JSONDecoder(object_pairs_hook=_unique), 0
    while at < len(text) and (rest := text[at:].lstrip()):
        at = len(text) - len(rest)
        line = text.count("\n", 0, at) + 1
        document, at = decoder.raw_decode(text, at)
        yield line, document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key is given twice")
    return mapping


def _expand(file: str, line: int, where: str, document: Any, defaults: dict[str, str]) -> Iterator[Manifest]:
    """Yield the document itself, or the items of a List, which need not repeat their kind. Raises UnreadableError."""
    if not isinstance(document, dict):
        raise UnreadableError(f"{where}: must be an object with apiVersion and kind")
    document = {**defaults, **document}
    for field in ("apiVersion", "kind"):
        if not isinstance(document.get(field), str) or not document[field]:
            raise UnreadableError(f"{where}: {field} must be given, as a string")
    kind = document["kind"]
    if not kind.endswith("List") or "items" not in document:
        yield Manifest(file, line, document)
        return
    items = document["items"] or []
    if not isinstance(items, list):
        raise UnreadableError(f"{where}: items of a {kind} must be a list")
    item_defaults = (
        {} if kind == "List" else {"apiVersion": document["apiVersion"], "kind": kind.removesuffix("List")}
    )
    for index, item in enumerate(items):
        yield from _expand(file, line, f"{where}, items[{index}]", item, item_defaults)
