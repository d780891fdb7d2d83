"""What `bowline plugin new` writes conforms with its own sample pods, as `bowline plugin check` finds them."""

import sys
from pathlib import Path

import pytest

from bowline_cli.main import main
from bowline_cli.plugin import files
from tests.waiting import LIMIT_S


def install(folder: Path, name: str) -> None:
    """Make the template's distribution importable, with its entry points."""
    for path, text in files(name).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    information = folder / f"bowline_{name}-0.1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: bowline-{name}\nVersion: 0.1.0\n")
    groups = (folder / "pyproject.toml").read_text().split("[project.entry-points.")[1:]
    points = [group.replace('"', "").split("\n\n")[0] for group in groups]
    (information / "entry_points.txt").write_text("\n".join(f"[{point}" for point in points))


@pytest.mark.usefixtures("command_on_the_cluster")
def test_a_new_plugin_passes_its_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "my_checks"
    install(tmp_path, name)
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert main(["plugin", "check", name, f"--limit={LIMIT_S}"]) == 0, capsys.readouterr().out
    finally:
        for module in [module for module in sys.modules if module.startswith(f"bowline_{name}")]:
            del sys.modules[module]
    assert capsys.readouterr().out == f"{name}: no findings\n"


@pytest.mark.usefixtures("command_on_the_cluster")
def test_a_pod_that_does_not_concern_the_plugin_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    install(tmp_path, "quiet")
    monkeypatch.syspath_prepend(tmp_path)
    pod = tmp_path / "pod.yaml"
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: pod}\nspec: {containers: [{name: main, image: x}]}\n"
    pod.write_text(text)
    assert main(["plugin", "check", "quiet", "--pod", str(pod)]) == 1
    assert "concerned: not checked: applies is False for the sample pod" in capsys.readouterr().out


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
