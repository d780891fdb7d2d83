"""Requests to an API server and its responses, as data; and which writes the caller of a client may send.

No networking: it is imported where only types are needed.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlencode

from multidict import CIMultiDictProxy

from bowline.api.meta import ObjectKey
from bowline.kube.errors import ApiStatus, NotFound
from bowline.kube.resources import Resource, Selection

_LONGEST_NAME = 253


@dataclass(frozen=True, slots=True)
class Call:
    """The subject of a request, for metrics and messages."""

    method: str
    verb: str
    resource: Resource
    key: ObjectKey
    subresource: str = ""

    @property
    def write(self) -> str:
        """What is written, with its verb and place; empty for a read."""
        return "" if self.method == "GET" else f"{self.verb} {self.label} {self.key}"

    @property
    def label(self) -> str:
        """The resource's metric label: ``pods/binding``."""
        return f"{self.resource.plural}/{self.subresource}" if self.subresource else self.resource.plural

    @property
    def text(self) -> str:
        """For messages: ``POST pods/binding default/train``."""
        return f"{self.method} {self.label} {self.key}"


def object_path(resource: Resource, namespace: str, name: str, subresource: str) -> str:
    """Return the path of one object. Raises ValueError without a name, or without a required namespace.

    Raises NotFound for a name that no object can have: a pod may name a PVC ``x/y``, and the API server would decode
    the path of another resource; or one of a megabyte, whose path it does not read.
    """
    # Without a name the path is the collection's: a delete would empty it.
    if not name:
        raise ValueError(f"a {resource.kind} needs a name")
    if resource.namespaced and not namespace:
        raise ValueError(f"{resource.kind} {name} needs a namespace")
    if name in (".", "..") or "/" in name or "%" in name or len(name) > _LONGEST_NAME:
        raise NotFound(ApiStatus(404, "NotFound", f"{resource} {name} not found"))
    return resource.path(namespace, name, subresource)


def selectors(selection: Selection) -> dict[str, str]:
    """Return the selectors of a selection as query parameters."""
    params = {}
    if selection.label_selector:
        params["labelSelector"] = selection.label_selector
    if selection.field_selector:
        params["fieldSelector"] = selection.field_selector
    return params


def query(params: Mapping[str, str]) -> str:
    """Return the query part of a URL; empty without parameters."""
    return "?" + urlencode(params) if params else ""


def accept(resource: Resource, verb: str) -> str:
    """Return the Accept header: whole objects, or their metadata alone."""
    if not resource.metadata_only:
        return "application/json"
    kind = "PartialObjectMetadataList" if verb == "list" else "PartialObjectMetadata"
    return f"application/json;as={kind};g=meta.k8s.io;v=v1"


# Raises UndeclaredWriteError.
Permit = Callable[[Call], None]

_CURRENT: ContextVar[Permit | None] = ContextVar("permit", default=None)


@contextmanager
def limited_to(permit: Permit | None) -> Iterator[None]:
    """Send only the writes of a block that ``permit`` accepts; None: all of them."""
    token = _CURRENT.set(permit)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def require_permit(call: Call) -> None:
    """Raise UndeclaredWriteError for a write that this context may not send."""
    permit = _CURRENT.get()
    if permit is not None and call.write:
        permit(call)


class PatchType(StrEnum):
    """The format of a patch; the value is its content type."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response. ``is_cut``: the body was longer than the request permits, and is not here."""

    code: int
    headers: CIMultiDictProxy[str]
    body: bytes
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """An HTTP request. ``separate_pool``: on connections of its own.

    ``on_send``: called when it has its connection, directly before it is sent; an error prevents that.
    ``max_body``: bytes of a response that are read at most; longer ones are aborted. 0: of any length.
    """

    method: str
    path: str
    accept: str
    body: bytes | None = None
    content_type: str = ""
    separate_pool: bool = False
    on_send: Callable[[], None] | None = None
    max_body: int = 0


@dataclass(frozen=True, slots=True)
class TransportOptions:
    """``timeout_s``: of a request with its reply; ``connect_timeout_s``: of a new connection, a part of it."""

    user_agent: str
    timeout_s: float
    connect_timeout_s: float
