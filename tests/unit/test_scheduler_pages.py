"""The pages for schedulers: the complete scheduler is the tested one, and both have the same minimal request."""

import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tests import hostile
from tests.documents import ROOT, blocks

GUIDE, PROTOCOL = (ROOT / "docs" / name for name in ("write-a-scheduler.md", "protocol.md"))


def test_the_complete_scheduler_is_the_example() -> None:
    (listing,) = (block.text for block in blocks(GUIDE) if block.info == "python")
    assert listing == (ROOT / "examples" / "scheduler" / "scheduler.py").read_text()


@pytest.mark.parametrize("text", [*hostile.MANAGED_FIELDS.values(), *hostile.PARAMETERS.values()])
def test_the_example_reads_what_api_servers_store(text: bytes) -> None:
    limit = sys.getrecursionlimit()
    try:
        program = runpy.run_path(str(ROOT / "examples" / "scheduler" / "scheduler.py"))
        assert program["read"](lambda **_: SimpleNamespace(data=b'{"items":[{"a":' + text + b"}]}"))["items"]
    finally:
        sys.setrecursionlimit(limit)


def request(page: Path) -> dict[str, object]:
    """The first BindRequest on the page."""
    document = yaml.safe_load(next(block.text for block in blocks(page) if block.info == "yaml"))
    assert document["kind"] == "BindRequest"
    spec: dict[str, object] = document["spec"]
    return spec


def test_both_pages_have_the_same_minimal_request() -> None:
    assert request(GUIDE).keys() == request(PROTOCOL).keys() == {"podName", "selectedNode"}
