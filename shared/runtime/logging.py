"""Logs: a constant message and fields beside it, one line each, to standard error.

A message never contains a value: ``log.info("pod bound", extra={"pod": key})``, so that lines can be counted and
searched. ``with_fields`` gives a logger that adds the same fields to every line.
"""

import logging
import sys
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import orjson

LogFormat = Literal["json", "text"]
FieldsLogger = logging.LoggerAdapter[logging.Logger]

# What every record has; anything else is a field of ours.
_RECORD = frozenset((*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"))
# Libraries that speak about their own doings; what matters of it comes to us as an exception.
_QUIET = ("aiohttp", "asyncio", "kubernetes")


class _Fields(FieldsLogger):
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


def with_fields(log: logging.Logger | FieldsLogger, **fields: Any) -> FieldsLogger:
    """Return a logger that adds ``fields`` to every line, besides those that ``log`` adds already."""
    if isinstance(log, logging.LoggerAdapter):
        return _Fields(log.logger, {**(log.extra or {}), **fields})
    return _Fields(log, fields)


def configure_logging(format: LogFormat, level: str, stream: TextIO | None = None) -> None:  # noqa: A002 - the option's name
    """Set up the process's logging; called once, by the program."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_JsonFormatter() if format == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


def fields_of(record: logging.LogRecord) -> Mapping[str, Any]:
    """Return what was given as ``extra``."""
    return {key: value for key, value in record.__dict__.items() if key not in _RECORD}


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = "".join(f" {key}={_shown(value)}" for key, value in fields_of(record).items())
        line = f"{_time(record)} {record.levelname:<7} {record.getMessage()}{fields}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _shown(value: Any) -> str:
    text = str(value)
    return text if text and not any(c.isspace() or c in '"=' for c in text) else orjson.dumps(text).decode()
