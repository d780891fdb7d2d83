"""The `bowline` command: its table of sub-commands, and what each of them imports."""

import contextlib
import platform
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points, version
from pathlib import Path

import pytest

import bowline_reconciler.options
import bowline_webhook.options
from bowline_cli.main import COMMANDS, main
from bowline_cli.plugin import COMMANDS as PLUGIN_COMMANDS

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"version"}))
def test_help_of_each_command_states_its_exit_status(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        main([name, "--help"])
    assert exit_.value.code == 0
    assert "Exit status: 0 " in " ".join(capsys.readouterr().out.split())


# What lint must not import: clients and servers, event loops, metrics, report formats, the metadata of
# distributions, and Bowline's own packages that only binding needs.
NOT_FOR_LINT = (
    *("kubernetes", "urllib3", "aiohttp", "uvloop", "cryptography", "ssl", "http", "asyncio", "logging"),
    *("prometheus_client", "xml", "html", "importlib.metadata"),
    *("bowline.kube", "bowline.runtime", "bowline.framework.binding", "bowline_reconciler"),
)


def test_lint_imports_nothing_that_only_binding_needs() -> None:
    program = (
        "import sys, bowline_cli.main\n"
        "assert bowline_cli.main.main(['lint', 'examples/manifests/good/fraction-pod.yaml']) == 0\n"
        "print(*sys.modules)"
    )
    completion = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = completion.stdout.splitlines()[-1].split()
    assert "bowline.plugins.gpu_sharing.admission" in modules
    assert [module for module in modules if f"{module}.".startswith(tuple(f"{name}." for name in NOT_FOR_LINT))] == []


@pytest.mark.parametrize(
    "print_version",
    [
        pytest.param(lambda: main(["version"]), id="bowline version"),
        pytest.param(lambda: main(["--version"]), id="bowline --version"),
        pytest.param(lambda: bowline_webhook.options.parse_options(["--version"], {}), id="the webhook"),
        pytest.param(lambda: bowline_reconciler.options.parse_options(["--version"], {}), id="the reconciler"),
    ],
)
def test_each_program_prints_the_version_of_the_wheel_and_of_python(
    print_version: Callable[[], object], capsys: pytest.CaptureFixture[str]
) -> None:
    with contextlib.suppress(SystemExit):
        print_version()
    assert capsys.readouterr().out == f"bowline {version('bowline-binder')}, Python {platform.python_version()}\n"


def test_both_names_are_one_program() -> None:
    """kubectl finds a program `kubectl-bowline` as `kubectl bowline`."""
    programs = entry_points(group="console_scripts")
    assert [programs[name].load() for name in ("bowline", "kubectl-bowline")] == [main, main]


def test_a_name_in_all_namespaces_is_bad_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "train", "-A"]) == 2
    assert "leave out -A, or the name" in capsys.readouterr().err


HELPS = [
    ["--help"],
    ["help"],
    ["help", "lint"],
    ["version", "--help"],
    *([name, "--help"] for name in COMMANDS),
    *(["plugin", name, "--help"] for name in PLUGIN_COMMANDS),
]


def test_every_help_works_without_an_extra() -> None:
    program = (
        "import sys, contextlib, io\n"
        "for name in ('kubernetes', 'pytest', 'hypothesis'): sys.modules[name] = None\n"
        "from bowline_cli.main import main\n"
        f"for arguments in {HELPS!r}:\n"
        "    with contextlib.redirect_stdout(io.StringIO()) as out:\n"
        "        try: main(arguments)\n"
        "        except SystemExit as error: assert error.code == 0, arguments\n"
        "    assert 'usage: bowline' in out.getvalue(), arguments\n"
    )
    completion = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert completion.returncode == 0, completion.stderr
