"""The chart's generated files match their sources; an outdated one is reported with the remedy."""

from pathlib import Path

import pytest

from tools.generate.__main__ import CHART, GENERATED, main


def test_the_charts_files_are_up_to_date() -> None:
    assert main(["--check"]) == 0


@pytest.mark.parametrize("name", GENERATED)
def test_an_outdated_or_missing_file_is_reported_with_the_remedy(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "files" / name
    path.parent.mkdir()
    assert main([str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    assert path.read_text("utf-8") == (CHART / "files" / name).read_text("utf-8")
    path.write_text(path.read_text("utf-8") + "#\n", "utf-8")
    assert main(["--check", str(tmp_path)]) == 1
    path.unlink()
    assert main(["--check", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"{path} is out of date; run `make generate`\n" * 2
