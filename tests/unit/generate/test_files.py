"""The chart's generated files match their sources; an outdated one is reported with the remedy."""

from pathlib import Path

import pytest

from tools.generate.__main__ import CHART, GENERATED, main


def test_the_charts_files_are_up_to_date() -> None:
    assert main(["--check"]) == 0


def test_each_outdated_or_missing_file_is_reported_with_the_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = {tmp_path / "files" / name: (CHART / "files" / name).read_text("utf-8") for name in GENERATED}
    (tmp_path / "files").mkdir()
    assert main([str(tmp_path)]) == 0
    assert main(["--check", str(tmp_path)]) == 0
    assert {path: path.read_text("utf-8") for path in texts} == texts
    for path, text in texts.items():
        path.write_text(f"{text}#\n", "utf-8")
    assert main(["--check", str(tmp_path)]) == 1
    for path in texts:
        path.unlink()
    assert main(["--check", str(tmp_path)]) == 1
    reports = "".join(f"{path} is out of date; run `make generate`\n" for path in texts)
    assert capsys.readouterr().err == reports * 2
