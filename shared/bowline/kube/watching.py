"""A watch that is read event by event, as an API server offers it; how its stream is opened is the caller's."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from bowline.api.meta import version_of
from bowline.kube.errors import NoJSON, Unreadable, decode_status, from_status
from bowline.kube.resources import Resource, Selection
from bowline.kube.unreadable import UnreadableObjects, parse_json, reduced_event

Event = dict[str, Any]
# Opens the stream of a selection's events after a resourceVersion; the first chunk is empty.
OpenStream = Callable[[Selection, str], AsyncGenerator[bytes, None]]
# Returns an event whose object's content does not matter, without decoding it; None for any other one.
Skip = Callable[[bytes], Event | None]


def skip_none(_: bytes) -> None:
    """Skip no event."""


class LineSplitter:
    """Buffers chunks and returns complete lines of any length, without copying a long one for every chunk."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    @property
    def ends_inside_line(self) -> bool:
        """Return whether the stream has ended inside a line."""
        return bool(self._parts)

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add the next chunk; return the lines it completes, without line ends and empty lines."""
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            if chunk:
                self._parts.append(chunk)
            return []
        lines = head.split(b"\n")
        if self._parts:
            lines[0] = b"".join((*self._parts, lines[0]))
        self._parts = [tail] if tail else []
        return [line for line in lines if line]


async def read_events(
    open_stream: OpenStream,
    selection: Selection,
    resource_version: str,
    unreadable: UnreadableObjects,
    on_open: Callable[[], None],
    skip: Skip,
) -> AsyncGenerator[Event, None]:
    """Yield the events after a resourceVersion. Raises the errors of the stream, and as ``KubeClient.watch``.

    An event whose object is neither decoded nor reduced is that of a custom resource, whose fields are in another
    order: it is asked for once more, as metadata, and ends the watch.
    """
    version = resource_version
    try:
        async with aclosing(_events(open_stream, selection, version, unreadable, on_open, skip)) as events:
            async for event in events:
                version = version_of(event["object"])
                yield event
    except Unreadable as error:
        if selection.resource.metadata_only:
            raise
        why = error
    else:
        return
    metadata = replace(selection, resource=selection.resource.as_metadata())
    async with aclosing(_events(open_stream, metadata, version, unreadable, lambda: None, skip_none)) as events:
        async for event in events:
            if event["type"] != "BOOKMARK":
                unreadable.add(selection.resource, event["object"], why.message)
                yield event
                return
    raise why


async def _events(
    open_stream: OpenStream,
    selection: Selection,
    version: str,
    unreadable: UnreadableObjects,
    on_open: Callable[[], None],
    skip: Skip,
) -> AsyncGenerator[Event, None]:
    """Yield the events of one stream. Raises Unreadable for one whose object is neither decoded nor reduced."""
    lines = LineSplitter()
    async with aclosing(open_stream(selection, version)) as chunks:
        async for chunk in chunks:
            if not chunk:
                on_open()
            for line in lines.feed(chunk):
                yield skip(line) or _event(selection.resource, line, unreadable)
    if lines.ends_inside_line:
        raise NoJSON("the watch ended in the middle of an event")


def _event(resource: Resource, line: bytes, unreadable: UnreadableObjects) -> Event:
    try:
        event = parse_json(line)
    except Unreadable as error:
        reduced = reduced_event(line)
        if reduced is None:
            raise
        unreadable.add(resource, reduced["object"], error.message)
        return reduced
    if event.get("type") == "ERROR":
        raise from_status(decode_status(event["object"]))
    if not isinstance(event.get("object"), dict) or "metadata" not in event["object"]:
        raise NoJSON("an event without an object; is something between here and the API server?")
    return event
