"""The content of a log line."""

import asyncio
import io
import logging
from collections.abc import Iterator

import orjson
import pytest

from bowline.api.meta import ObjectKey
from bowline.runtime.logging import LogFormat, add_to_scope, configure_logging, log_scope


@pytest.fixture(autouse=True)
def untouched_root() -> Iterator[None]:
    """Restore the root logger: configure_logging is for programs."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def logged(format_: LogFormat, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    configure_logging(format_, level, stream)
    return stream


def test_json_is_one_object_a_line_with_the_fields_beside_the_message() -> None:
    stream = logged("json")
    log = logging.getLogger("acme.binding")
    log.info("pod bound", extra={"pod": ObjectKey("ns", "a"), "attempt": 2, "note": "two\nlines"})
    log.debug("not shown")
    (line,) = stream.getvalue().splitlines()
    entry = orjson.loads(line)
    assert entry.pop("time").endswith("Z")
    assert entry == {
        "level": "info",
        "logger": "acme.binding",
        "message": "pod bound",
        "pod": "ns/a",
        "attempt": 2,
        "note": "two\nlines",
    }


def test_json_carries_a_traceback_as_a_field() -> None:
    stream = logged("json")
    try:
        int("out of order")
    except ValueError:
        logging.getLogger("x").exception("pass failed")
    entry = orjson.loads(stream.getvalue())
    assert entry["traceback"].splitlines()[-1] == "ValueError: invalid literal for int() with base 10: 'out of order'"
    assert len(stream.getvalue().splitlines()) == 1


def test_libraries_are_silent_below_warnings() -> None:
    stream = logged("text", "debug")
    logging.getLogger("aiohttp.access").info("GET / 200")
    logging.getLogger("asyncio").debug("Using selector")
    logging.getLogger("aiohttp.client").warning("shown")
    assert [line.split()[2] for line in stream.getvalue().splitlines()] == ["shown"]


def test_a_value_forges_no_field_of_a_text_line_and_is_cut() -> None:
    stream = logged("text")
    logging.getLogger("x").info("denied", extra={"pod": "a user=admin", "caller": "x" * 100_000})
    (line,) = stream.getvalue().splitlines()
    assert ' pod="a user=admin" ' in line
    assert line.endswith('... (100000 characters)"')
    assert len(line) < 10_000


async def test_a_scope_is_on_every_line_logged_in_it() -> None:
    stream = logged("json")

    async def client() -> None:
        logging.getLogger("bowline.kube").info("called")

    async def attempt(name: str) -> None:
        with log_scope(bindRequest=name):
            await client()
            add_to_scope(attempt=f"{name}-1")
            # Concurrently with the other, and in separate tasks.
            await asyncio.gather(client(), asyncio.create_task(client()))
            logging.getLogger("x").info("own", extra={"attempt": "set by the line itself"})
        await client()

    await asyncio.gather(attempt("a"), attempt("b"))
    lines = [orjson.loads(line) for line in stream.getvalue().splitlines()]
    for name in ("a", "b"):
        mine = [line.get("attempt", "") for line in lines if line.get("bindRequest") == name]
        assert mine == ["", f"{name}-1", f"{name}-1", "set by the line itself"]
    assert len([line for line in lines if "bindRequest" not in line]) == 2


def test_no_line_is_lost_to_a_value_that_json_cannot_hold() -> None:
    stream = logged("json")
    logging.getLogger("x").info("odd", extra={"half": "\ud800", "large": 2**70})
    entry = orjson.loads(stream.getvalue())
    assert (entry["message"], entry["large"]) == ("odd", str(2**70))


@pytest.mark.parametrize("format_", ["text", "json"])
@pytest.mark.parametrize(
    "value", ["x\x1b[2J", "\x00", "a\x9b31m", "a\u2028b", "\u202eevil", "\u2066x", "\ud800", "\U000e0001"]
)
def test_no_line_holds_a_character_that_a_terminal_obeys(format_: LogFormat, value: str) -> None:
    stream, log = logged(format_), logging.getLogger("test")
    log.error("failed", extra={"object": value}, exc_info=ValueError(value))
    output = stream.getvalue()
    assert all(line.isprintable() for line in output.split("\n"))
    if format_ == "json":
        fields = orjson.loads(output)
        assert fields["object"] == value.encode(errors="replace").decode()
