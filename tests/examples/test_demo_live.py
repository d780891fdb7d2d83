"""The recording in README.md is what `make demo` prints."""

from pathlib import Path

import pytest

from tests.documents import run
from tests.examples.recording import COMMAND, PICTURE, comparable, lines_of, wrapped


@pytest.mark.long
def test_the_demo_prints_the_recording() -> None:
    """After a change of the demo or of what it prints: ``python -m tests.examples.recording``."""
    output = run(COMMAND, kubeconfig=Path("unused"))
    assert comparable(lines_of(PICTURE.read_text(encoding="utf-8"))) == comparable(wrapped(output)), output
