"""What `bowline plugin new` writes conforms with its own pod; a name or a folder that cannot be used is an error."""

import sys
from pathlib import Path
from runpy import run_path

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.testing import conformance
from bowline_cli.main import main
from tests.waiting import LIMIT_S


def test_a_new_plugin_conforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bowline_cluster: Cluster) -> None:
    folder = tmp_path / "new"
    assert main(["plugin", "new", "my_checks", f"--folder={folder}"]) == 0
    monkeypatch.syspath_prepend(folder)
    try:
        pod = run_path(str(folder / "tests" / "test_conformance.py"))["POD"]
        plugin = sys.modules["bowline_my_checks"].MyChecks
        run = conformance.run(plugin, bowline_cluster, pods=[pod], limit_s=LIMIT_S)
        assert list(run) == []
    finally:
        sys.modules.pop("bowline_my_checks", None)


@pytest.mark.parametrize("name", ["licence_", "my__checks", "_a", "1a", "A", "a" * 41, "class", "gpu_sharing"])
def test_a_name_that_cannot_be_used_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plugin", "new", name, f"--folder={tmp_path / 'new'}"]) == 2
    assert name in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_folder_that_cannot_be_written_is_an_error_with_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("absent/target")
    for folder in (tmp_path / "file" / "new", tmp_path / "link", tmp_path / ("x" * 300)):
        assert main(["plugin", "new", "quota", f"--folder={folder}"]) == 2, folder
        assert "name another folder with --folder" in capsys.readouterr().err
