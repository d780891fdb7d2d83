"""The recording in README.md is what `make demo` prints."""

from pathlib import Path

from tests.documents import ROOT, Command, blocks, run


def test_the_demo_prints_the_recording() -> None:
    [recording] = [block.text for block in blocks(ROOT / "README.md") if block.info == "text"]
    demo = Command("make demo", recording)
    output = run(demo.text, kubeconfig=Path("unused"))
    assert demo.matches(output), output
