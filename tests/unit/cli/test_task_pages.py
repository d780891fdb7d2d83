"""The manifests on the page of shares are allowed, without a warning."""

from pathlib import Path

import pytest

from bowline_cli.main import main
from tests.documents import ROOT, blocks


def test_the_pages_manifests_are_allowed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifests = [block.text for block in blocks(ROOT / "docs" / "half-a-gpu.md") if block.info == "yaml"]
    file = tmp_path / "manifest.yaml"
    file.write_text("\n---\n".join(manifests), encoding="utf-8")
    assert main(["lint", str(file)]) == 0
    output = capsys.readouterr().out.splitlines()
    assert all(line.endswith(": allowed") for line in output[:-1]), output
    assert len(output) == len(manifests) + 1 > 5
