"""``--check``: both processes check their command line and configuration, and exit before they do anything."""

from pathlib import Path

import pytest

import bowline_reconciler.app
import bowline_webhook.app
from bowline.runtime.version import version_text

HEAD = "apiVersion: config.bowline.dev/v1alpha1\nkind: BowlineConfiguration\n"
INVALID = f"""{HEAD}
plugins: [{{name: no_such_plugin}}, {{name: node_fit, args: {{x: 1}}}}]
pluginOrder: [node_fit]
"""
PROGRAMS = [
    pytest.param(bowline_webhook.app.main, id="webhook"),
    pytest.param(bowline_reconciler.app.main, id="reconciler"),
]


def check(monkeypatch: pytest.MonkeyPatch, main: object, config: Path, *flags: str) -> object:
    """Run the program with ``--check`` and without access to a cluster; return its exit status."""
    monkeypatch.setattr(
        "sys.argv", ["program", f"--config={config}", "--server=https://127.0.0.1:1", "--check", *flags]
    )
    assert callable(main)
    with pytest.raises(SystemExit) as exit_info:
        main()
    return exit_info.value.code


@pytest.mark.parametrize("main", PROGRAMS)
def test_a_valid_configuration_exits_with_0(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], main: object
) -> None:
    (tmp_path / "config.yaml").write_text(HEAD)
    assert check(monkeypatch, main, tmp_path / "config.yaml") == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("main", PROGRAMS)
def test_an_invalid_configuration_exits_with_2_and_every_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], main: object
) -> None:
    (tmp_path / "config.yaml").write_text(INVALID)
    assert check(monkeypatch, main, tmp_path / "config.yaml") == 2
    errors = capsys.readouterr().err
    paths = ("plugins[0].name", "no_such_plugin", "plugins[1].args.x", "pluginOrder")
    assert [path for path in paths if path not in errors] == []


@pytest.mark.parametrize("main", PROGRAMS)
def test_an_invalid_command_line_exits_with_2(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, main: object) -> None:
    (tmp_path / "config.yaml").write_text(HEAD)
    assert check(monkeypatch, main, tmp_path / "config.yaml", "--no-such-flag") == 2


@pytest.mark.parametrize("main", PROGRAMS)
def test_the_version_is_shown_whatever_the_configuration_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], main: object
) -> None:
    assert check(monkeypatch, main, tmp_path / "missing.yaml", "--version") == 0
    assert capsys.readouterr().out == f"{version_text()}\n"
