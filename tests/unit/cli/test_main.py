"""The `bowline` command: its table of sub-commands, and what each of them imports."""

import subprocess
import sys

import pytest

from cli.main import COMMANDS, main


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_states_its_exit_status(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([name, "--help"])
    assert exit_.value.code == 0
    assert "Exit status: 0 " in " ".join(capsys.readouterr().out.split())


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    printed = capsys.readouterr().out
    assert all(f"    {name} " in printed for name in COMMANDS)


def test_lint_imports_no_package_that_reaches_clusters() -> None:
    program = (
        "import sys, cli.main\n"
        "cli.main.main(['lint', '-', '--allow-empty'])\n"
        "sys.exit(str({'kubernetes', 'urllib3'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], input="", capture_output=True, text=True, check=False)
    assert done.stderr == "set()\n"
