"""Manifest files: from text to the objects that ``kubectl apply -f`` would send.

YAML with any number of documents, JSON, a JSON list, or one JSON object per line, in UTF-8 or UTF-16; a List is
expanded. A file that is named must hold manifests only: one that seems to have passed although it was skipped would
be worse than an error. Of a directory only some files are manifests, so a document without apiVersion and kind is
counted there, and a template that is not rendered is named, instead of reported as an error.
"""

import codecs
import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import yaml

from bowline.api.field_error import format_value, join_path
from bowline.api.rule import Rule, Severity
from bowline.framework.strict_yaml import StrictLoader, YamlBudget
from bowline_cli.kustomize import Part

UNREADABLE: Final = Rule("lint/unreadable", "a file cannot be read, or is no manifest")
DUPLICATE_KEY: Final = Rule(
    "lint/duplicate-key",
    "a key is given twice in one mapping: kubectl applies the last value without a message",
    Severity.WARNS,
)
SCHEDULER: Final = Rule(
    "lint/scheduler",
    "a pod that requests a GPU has a scheduler that is not in the configuration (only with `--require-scheduler`)",
)
RULES: Final = (UNREADABLE, DUPLICATE_KEY, SCHEDULER)


@dataclass(frozen=True, slots=True)
class Finding:
    """An error or a warning, and the file and line of the field that it is about."""

    rule: Rule
    file: str
    line: int
    message: str
    is_warning: bool = False


def duplicate_text(line: int, key: str, *, is_rendered: bool = False) -> str:
    """Return the message about a key that is given twice in the same mapping."""
    of_what = " of what is rendered" if is_rendered else ""
    return f"line {line}{of_what}: key {format_value(key)} is given twice: kubectl applies the last value; remove one"


@dataclass
class TextNodes:
    """The nodes of a text, by document, up to where it is not YAML; composed once, when a line is asked for."""

    text: str

    @cached_property
    def nodes(self) -> Sequence[Any]:
        return tuple(self._compose())

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
        nodes = self.text.nodes
        return _line(nodes[self.index], join_path(self.path, path)) if self.index < len(nodes) else default


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


STANDARD_INPUT = "-"
_BYTE_ORDER_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# Files of build tools that look like manifests and are not applied.
_TOOL_FILES = ("kustomization.yaml", "kustomization.yml", "Chart.yaml", "Chart.yml")
_HAS_VERSION: Final = re.compile(r"""(?m)^[ \t]*(?:- +)?["']?apiVersion["']?\s*:|[{,]\s*["']?apiVersion["']?\s*:""")
_HAS_KIND: Final = re.compile(r"""(?m)(?:^|[\s{,"'])kind["']?\s*:""")
# A manifest has fewer; the library for the schema takes several calls for each.
_MOST_LEVELS: Final = 100
_VARIABLE: Final = re.compile(r"\$\{\w|\$\(\w|(?m:^\s*\$\w+\s*$)")
_SOURCE: Final = re.compile(r"#\s*Source:\s*(\S.*?)\s*")
# Of a comment in a file, where a person may name a source as well.
_CHART_PATH: Final = re.compile(r"[^:]*/(?:templates|crds|charts)/")


class UnreadableError(Exception):
    """A file is missing or not a manifest; the message contains file, line and error."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object, the file that its author wrote, and the line in which its document begins. ``object`` may be
    modified; no part of it is shared.

    ``text``: where it was read; None if unknown. ``duplicates``: line and key of keys of the document that are given
    twice. ``part``: as what a kustomization names the file. ``is_rendered``: the file is a template, whose lines and
    perhaps path are others.
    """

    file: str
    line: int
    object: dict[str, Any]
    text: DocumentText | None = None
    duplicates: tuple[tuple[int, str], ...] = ()
    part: Part | None = None
    is_rendered: bool = False

    @property
    def place(self) -> str:
        """File and line; of a rendered template only the file."""
        return f"{self.file} (rendered)" if self.is_rendered else f"{self.file}:{self.line}"

    @property
    def group(self) -> str:
        """API group; empty for the core group."""
        return str(self.object["apiVersion"]).rpartition("/")[0]

    @property
    def key(self) -> tuple[str, str]:
        """API group and kind."""
        return self.group, self.kind

    @property
    def api(self) -> tuple[str, str, str]:
        """API group, version and kind."""
        return self.group, str(self.object["apiVersion"]).rpartition("/")[2], self.kind

    @property
    def kind(self) -> str:
        """Kind of the object."""
        return str(self.object["kind"])

    def line_of(self, path: str) -> int:
        """Return the line of a field; that of the nearest one around it, or of the document, if it is not there."""
        return self.line if self.text is None else self.text.line_of(path, self.line)


@dataclass(slots=True)
class FileContent:
    """What a file holds. ``errors``: why it, or a part of it, is not read; ``unrendered``: the same for templates.

    ``others``: the number of documents that are no manifests.
    """

    manifests: list[Manifest] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    unrendered: str = ""
    others: int = 0


def read_file(file: str, budget: YamlBudget, *, is_named: bool) -> FileContent:
    """Read a file, or standard input for ``-``. ``is_named``: by the user, who means it to hold manifests only."""
    content, text = FileContent(), ""
    try:
        text = _text_of(file)
        if not is_named and (Path(file).name in _TOOL_FILES or not _resembles_manifests(text)):
            content.others = 1
        else:
            _read_text(content, file, text, budget, is_named=is_named)
    except UnreadableError as error:
        if not is_named and _is_template(text):
            content.unrendered = str(error)
        else:
            content.errors.append(str(error))
    return content


def parse_manifests(file: str, text: str) -> list[Manifest]:
    """Return the objects in the text, in its order. Raises UnreadableError."""
    content = FileContent()
    _read_text(content, file, text, YamlBudget(), is_named=True)
    return content.manifests


def _text_of(file: str) -> str:
    try:
        content = sys.stdin.buffer.read() if file == STANDARD_INPUT else Path(file).read_bytes()
        return content.decode("utf-16" if content.startswith(_BYTE_ORDER_MARKS) else "utf-8-sig")
    except OSError as error:
        raise UnreadableError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UnreadableError(f"{file}: is not text in UTF-8 or UTF-16 (byte {error.start})") from error


def _resembles_manifests(text: str) -> bool:
    return _HAS_VERSION.search(text) is not None and _HAS_KIND.search(text) is not None


def _is_template(text: str) -> bool:
    return "{{" in text or _VARIABLE.search(text) is not None


def _read_text(content: FileContent, file: str, text: str, budget: YamlBudget, *, is_named: bool) -> None:
    """Add the objects in the text. Raises UnreadableError at the first part that cannot be read."""
    nodes = TextNodes(text)
    try:
        for document in _documents(text, budget):
            where = f"{file}: line {document.line}"
            # The JSON round trip leaves only JSON types and string keys, and copies parts that YAML anchors share.
            encoded = json.dumps(document.value, allow_nan=False, ensure_ascii=False)
            encoded.encode()  # rejects lone surrogates, which no API server accepts
            plain = json.loads(encoded)
            if not is_named and _is_other(plain):
                content.others += 1
                continue
            _limit_depth(plain)
            is_rendered = bool(document.source if file == STANDARD_INPUT else _CHART_PATH.match(document.source))
            origin = Manifest(file, document.line, {}, None, document.duplicates, is_rendered=is_rendered)
            if is_rendered:
                origin = replace(origin, file=document.source, line=1)
            place = None if is_rendered else DocumentText(nodes, document.index)
            if isinstance(plain, list):
                for index, item in enumerate(plain):
                    content.manifests += _expand(origin, place and place.below(f"[{index}]"), where, item, {})
            else:
                content.manifests += _expand(origin, place, where, plain, {})
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise UnreadableError(f"{file}: {at}{error.problem or error.context}{_hint(text)}") from error
    except yaml.YAMLError as error:
        raise UnreadableError(f"{file}: {' '.join(str(error).split())}") from error
    except RecursionError as error:
        raise UnreadableError(f"{file}: is nested too deeply") from error
    except (TypeError, ValueError) as error:
        raise UnreadableError(f"{file}: holds what JSON cannot: {error}") from error


def _hint(text: str) -> str:
    if "{{" in text:
        return "; it looks like a template: review the output of helm template"
    return "; it has variables: review the output of envsubst" if _VARIABLE.search(text) else ""


@dataclass(frozen=True, slots=True)
class _Document:
    """A document: its number in the text, the file that a comment names as its source, and its first line."""

    value: Any
    index: int
    line: int
    source: str = ""
    duplicates: tuple[tuple[int, str], ...] = ()


_INT64 = 2**63


class _Loader(StrictLoader):
    """Notes duplicate keys, of which kubectl takes the last."""

    def __init__(self, text: str, budget: YamlBudget) -> None:
        super().__init__(text, budget)
        self.duplicates: list[tuple[int, str]] = []

    def on_duplicate(self, key: Any, mark: Any) -> None:
        """Note the key."""
        self.duplicates.append((mark.line + 1, str(key)))

    def construct_float(self, node: Any) -> float:
        """Construct a number; kubectl sends one without a fraction as a whole one, 3 for 3.0."""
        return _kubectl_number(self.construct_yaml_float(node))


_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_float)


def _kubectl_number(number: float) -> float:
    return int(number) if number.is_integer() and abs(number) < _INT64 else number


def _documents(text: str, budget: YamlBudget) -> Iterator[_Document]:
    """Yield each non-empty document."""
    if text.lstrip().startswith(("{", "[")):
        try:
            documents = list(_json_documents(text))
        except ValueError:
            pass  # may be YAML in flow style; if it is neither, the YAML error contains the line
        else:
            yield from documents
            return
    loader, index, lines = _Loader(text, budget), -1, text.splitlines() if "# Source:" in text else []
    try:
        while loader.check_node():
            node = loader.get_node()
            assert node is not None  # noqa: S101 - check_node has returned True
            index += 1
            loader.duplicates.clear()
            value = loader.construct_document(node)
            if value is not None:
                line = node.start_mark.line
                yield _Document(value, index, line + 1, _source(lines, line), tuple(loader.duplicates))
    finally:
        loader.dispose()


def _source(lines: list[str], line: int) -> str:
    """Return the file that the comment above the line names as its source, as Helm writes it; empty without one."""
    for text in reversed(lines[:line]):
        if text.strip() and not text.startswith("#"):
            return ""
        match = _SOURCE.fullmatch(text)
        if match is not None:
            return match[1]
    return ""


def _json_documents(text: str) -> Iterator[_Document]:
    """Yield each JSON value with its line. Raises ValueError."""
    decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_float=lambda text: _kubectl_number(float(text)))
    at, index, line, counted = 0, 0, 1, 0
    space = re.compile(r"\s*")
    while at < len(text):
        match = space.match(text, at)
        at = match.end() if match is not None else at
        if at >= len(text):
            return
        line, counted = line + text.count("\n", counted, at), at
        value, at = decoder.raw_decode(text, at)
        yield _Document(value, index, line)
        index += 1


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise ValueError("a key is given twice")
    return mapping


def _limit_depth(value: Any) -> None:
    """Raise RecursionError for a document that is nested more deeply than the review, which is recursive, follows."""
    level = [value]
    for _ in range(_MOST_LEVELS):
        parts = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, dict | list)]
        level = [item for items in parts for item in items]
    if level:
        raise RecursionError


def _is_other(value: Any) -> bool:
    """Return whether a document is no manifest: it has neither apiVersion nor kind, or one of them and nothing else
    of a manifest.
    """
    if isinstance(value, list):
        return not any(isinstance(item, dict) and "apiVersion" in item for item in value)
    if not isinstance(value, dict):
        return True
    given = [isinstance(value.get(key), str) and bool(value[key]) for key in ("apiVersion", "kind")]
    return not all(given) and not (any(given) and ("metadata" in value or "spec" in value))


def _expand(
    origin: Manifest, text: DocumentText | None, where: str, document: Any, defaults: dict[str, str]
) -> Iterator[Manifest]:
    """Yield the document itself, or the items of a List, which need not repeat their kind. Raises UnreadableError."""
    if not isinstance(document, dict):
        raise UnreadableError(f"{where}: must be an object with apiVersion and kind")
    document = {**defaults, **document}
    for name in ("apiVersion", "kind"):
        if not isinstance(document.get(name), str) or not document[name]:
            raise UnreadableError(f"{where}: {name} must be given, as a string")
    kind = document["kind"]
    if not kind.endswith("List") or "items" not in document:
        yield replace(origin, object=document, text=text)
        return
    items = document["items"] or []
    if not isinstance(items, list):
        raise UnreadableError(f"{where}: items of a {kind} must be a list")
    item_defaults = (
        {} if kind == "List" else {"apiVersion": document["apiVersion"], "kind": kind.removesuffix("List")}
    )
    for index, item in enumerate(items):
        below = text and text.below(f"items[{index}]")
        yield from _expand(origin, below, f"{where}, items[{index}]", item, item_defaults)
