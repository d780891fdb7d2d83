"""The wheel: one top-level package, typed, beside an author's packages of any name."""

import zipfile
from pathlib import Path

import pytest

from bowline.cli import main
from tests.wheel.conftest import Installed

PLUGIN = """
from collections.abc import Iterable

from bowline import AdmissionInfo, AdmissionPlugin, BindContext, BindingPlugin
from bowline import FieldError, Object, PluginConfig, Status
from bowline.errors import NotFound
from bowline.resources import CONFIGMAPS


class LicenceConfig(PluginConfig):
    server: str


class Licence(AdmissionPlugin[LicenceConfig], BindingPlugin[LicenceConfig]):
    name = "licence"

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        return []

    async def pre_bind(self, ctx: BindContext) -> Status:
        try:
            await ctx.client.get(CONFIGMAPS, ctx.request.key.namespace, "licences")
        except NotFound:
            return Status.retry(self.args.server)
        return Status.ok()
"""

PROGRAMS = ["bowline.webhook", "bowline.reconciler", "bowline.cli", "bowline.localcluster", "bowline.conformance"]


def test_it_has_one_top_level_package(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"bowline"}
    assert {"bowline/py.typed", "bowline/shared/plugin.py", "bowline/webhook/__main__.py"} <= set(names)
    assert not [name for name in names if "/tests/" in name]


@pytest.mark.parametrize("name", ["shared", "cli", "webhook", "reconciler"])
def test_a_package_of_the_author_may_have_any_name(installed: Installed, tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("WHOSE = 'the author'")
    program = f"import {name}, bowline.webhook.app, bowline.reconciler.app, bowline.cli.main; print({name}.WHOSE)"
    result = installed.run("-c", program, cwd=tmp_path)
    assert (result.stdout.strip(), result.stderr) == ("the author", "")


def test_mypy_strict_accepts_a_plugin_and_finds_its_mistake(installed: Installed, tmp_path: Path) -> None:
    module = tmp_path / "licence.py"
    check = ("-m", "mypy", "--strict", f"--python-executable={installed.python}", "--cache-dir=cache", module.name)
    module.write_text(PLUGIN)
    result = installed.run(*check, cwd=tmp_path)
    assert (result.stdout.strip(), result.returncode) == ("Success: no issues found in 1 source file", 0)
    module.write_text(PLUGIN.replace("return Status.ok()", "return None"))
    result = installed.run(*check, cwd=tmp_path)
    assert 'got "None", expected "Status"' in result.stdout
    assert result.returncode == 1


@pytest.mark.parametrize("module", PROGRAMS)
def test_its_programs_start(installed: Installed, tmp_path: Path, module: str) -> None:
    result = installed.run("-m", module, "--help", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("command", [*main.COMMANDS][:-1])
def test_its_commands_are_modules_of_the_package(installed: Installed, tmp_path: Path, command: str) -> None:
    result = installed.run("-m", "bowline.cli", command, "--help", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
