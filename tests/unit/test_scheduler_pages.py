"""The pages for schedulers: the complete scheduler is the tested one, and both have the same minimal request."""

from pathlib import Path

import yaml

from tests.documents import ROOT, blocks

GUIDE, PROTOCOL = (ROOT / "docs" / name for name in ("write-a-scheduler.md", "protocol.md"))


def test_the_complete_scheduler_is_the_example() -> None:
    (listing,) = (block.text for block in blocks(GUIDE) if block.info == "python")
    assert listing == (ROOT / "examples" / "scheduler" / "scheduler.py").read_text()


def request(page: Path) -> dict[str, object]:
    """The first BindRequest on the page."""
    document = yaml.safe_load(next(block.text for block in blocks(page) if block.info == "yaml"))
    assert document["kind"] == "BindRequest"
    spec: dict[str, object] = document["spec"]
    return spec


def test_both_pages_have_the_same_minimal_request() -> None:
    assert request(GUIDE).keys() == request(PROTOCOL).keys() == {"podName", "selectedNode"}
