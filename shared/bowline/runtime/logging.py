"""Structured logs: a constant message with fields, one line each, on standard error.

A message never contains a value: ``log.info("pod bound", extra={"pod": key})``, so that lines can be counted and
searched. ``log_scope`` adds fields to every line logged within the block, by any module, so that each line within an
attempt, of a plugin or of the client, contains the attempt's ID. Tasks started in a scope inherit its fields.
"""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import orjson

from bowline.api.field_error import printable

LogFormat = Literal["json", "text"]

# Attributes of every record; any other one is a field.
_RECORD = frozenset((*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"))
# Libraries that log their own activity; what matters of it is raised as an exception.
_QUIET = ("aiohttp", "asyncio", "kubernetes", "urllib3")
MAX_FIELD = 4096
_NOTHING: Mapping[str, Any] = {}
_scope: ContextVar[Mapping[str, Any]] = ContextVar("log fields", default=_NOTHING)


@contextmanager
def log_scope(**fields: Any) -> Iterator[None]:
    """Add ``fields`` to every line logged within the block, in addition to those of the enclosing scope."""
    token = _scope.set({**_scope.get(), **fields})
    try:
        yield
    finally:
        _scope.reset(token)


def add_to_scope(**fields: Any) -> None:
    """Add ``fields`` to the open scope; they are removed at its end."""
    _scope.set({**_scope.get(), **fields})


def configure_logging(format: LogFormat, level: str, stream: TextIO | None = None) -> None:  # noqa: A002 - the option's name
    """Configure the process's logging; called once, by the program."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if format == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return the scope's fields and those in ``extra``, which take precedence.

    Libraries use message templates; then ``text`` is the formatted message, and the message is the template.
    """
    extra = {key: _truncate(value) for key, value in record.__dict__.items() if key not in _RECORD}
    text = {"text": record.getMessage()} if record.args else _NOTHING
    return {**_scope.get(), **text, **extra}


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": str(record.msg),
            **fields_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        try:
            return printable(orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode())
        except TypeError:
            # An unpaired surrogate or an integer of more than 64 bits: rare, and no reason to lose the line.
            plain = {key: str(value).encode(errors="replace").decode() for key, value in line.items()}
            return printable(orjson.dumps(plain).decode())


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={_text(value)}" for key, value in fields_of(record).items())
        line = printable(f"{_time(record)} {record.levelname:<7} {record.msg}{fields}")
        if not record.exc_info:
            return line
        traceback = self.formatException(record.exc_info)
        return "\n".join([line, *map(printable, traceback.split("\n"))])


def _truncate(value: Any) -> Any:
    """Return a field's value, truncated: callers control some of them, and log storage is not free."""
    if isinstance(value, str) and len(value) > MAX_FIELD:
        return f"{value[:MAX_FIELD]}... ({len(value)} characters)"
    return value


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _text(value: Any) -> str:
    text = str(value)
    return text if text and not any(c.isspace() or c in '"=' for c in text) else orjson.dumps(text).decode()
