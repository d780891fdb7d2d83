"""Splits a stream of bytes into lines. Pure."""


class LineSplitter:
    """Buffers chunks and returns complete lines of any length, without copying a long one for every chunk."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    @property
    def unfinished(self) -> bool:
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
