"""Mistakes in a plugin's class end the start of every program, with plugin, method and remedy."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

import bowline_cli.main
import bowline_reconciler.app
import bowline_webhook.app
from bowline.api.rule import Rule
from bowline.framework.interface.access import Access, AccessRule
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.plugin import AdmissionPlugin, Plugin, PluginConfig
from bowline.framework.interface.status import Status
from bowline.framework.plugin_class import POINTS, class_errors

LINT = "lint"
PATH = "plugins[0].name"


async def binding(self: Plugin, ctx: BindContext) -> Status:
    return Status.ok()


async def undo(self: Plugin, ctx: BindContext, why: Status) -> Status:
    return Status.ok()


async def generator(self: Plugin, pod: Any, old: Any, info: Any) -> Any:
    yield


class Helper:
    """A helper that a class has beside its extension points."""

    limit: ClassVar[type] = int

    @property
    def size(self) -> int:
        return 1

    def _helper(self) -> None:
        pass


def plugin_class(members: dict[str, Any], *kinds: type) -> type:
    return type("Licence", kinds or (BindingPlugin,), {"name": "licence", **members})


def messages(candidate: Any) -> list[tuple[str, str]]:
    """The rule and the text of each error."""
    return [(error.rule.id, str(error)) for error in class_errors(candidate, "licence", PATH)]


MISTAKES: list[Any] = [
    pytest.param({"prebind": binding}, (BindingPlugin,), "plugin/unknown-method", ("licence.prebind",
        "nearest is BindingPlugin.pre_bind", "begin a helper's with _"), id="a misspelt method"),
    pytest.param({"seats_left": lambda self: 3}, (AdmissionPlugin,), "plugin/unknown-method", ("licence.seats_left",
        "is never called"), id="a public helper"),
    pytest.param({"pre_bind": binding}, (AdmissionPlugin,), "plugin/kind", ("licence.pre_bind",
        "derive the class from BindingPlugin too"), id="a binding method of an admission plugin"),
    pytest.param({"pre_bind": lambda self, ctx: Status.ok()}, (BindingPlugin,), "plugin/async", ("licence.pre_bind",
        "must be asynchronous", "`async def pre_bind(self, ctx)`"), id="pre_bind without async"),
    pytest.param({"validate_pod": generator}, (AdmissionPlugin,), "plugin/async", ("licence.validate_pod",
        "must not be asynchronous"), id="an asynchronous generator"),
    pytest.param({"pre_bind": undo}, (BindingPlugin,), "plugin/arguments", ("licence.pre_bind",
        "missing a required argument: 'why'", "`async def pre_bind(self, ctx)`"), id="an argument too many"),
    pytest.param({"bind": Status.ok()}, (BindingPlugin,), "plugin/method", ("licence.bind", "must be a method",
        "`async def bind(self, ctx)`"), id="a value for a method"),
    *(
        pytest.param({attribute: value}, (BindingPlugin,), "config/plugin", (f"`{attribute}` must be {expected}",),
            id=attribute)
        for attribute, value, expected in (
            ("budgets", 60, "a Budgets, not 60"),
            ("requires", "base", "a tuple of names"),
            ("before", ["base"], "a tuple of names"),
            ("config_model", dict, "a subclass of PluginConfig"),
            ("rules", ["licence/seat"], "a tuple of Rule"),
            ("access", (), "an Access"),
        )
    ),
    pytest.param({"rules": (Rule("acme/value", "x"),)}, (AdmissionPlugin,), "config/plugin",
        ('acme/value must begin with "licence/"',), id="another's rule"),
    pytest.param({"access": Access(rules=(AccessRule("configmaps", ("create",)),))}, (BindingPlugin,),
        "plugin/access", ("licence.access", "any of the configmaps"), id="any object"),
]  # fmt: skip


@pytest.mark.parametrize(("members", "kinds", "rule", "parts"), MISTAKES)
def test_a_mistake_is_one_error_that_names_method_and_remedy(
    members: dict[str, Any], kinds: Sequence[type], rule: str, parts: Sequence[str]
) -> None:
    (error,) = class_errors(plugin_class(members, *kinds), "licence", PATH)
    assert (error.rule.id, error.path) == (rule, PATH)
    assert [part for part in parts if part not in str(error)] == []


@pytest.mark.parametrize(
    "candidate",
    [
        pytest.param(plugin_class({"rules": (Rule("licence/seat", "x"),)}), id="its own rule"),
        pytest.param(plugin_class({"pre_bind": binding, "_seats": binding}), id="a private helper"),
        pytest.param(plugin_class({}, Helper, BindingPlugin), id="a property and a nested class"),
        pytest.param(plugin_class({"applies": lambda *_: None}), id="any arguments"),
        pytest.param(plugin_class({"applies": lambda self, pod, request, cache=None: None}),
            id="an argument of its own"),
        pytest.param(plugin_class({"applies": staticmethod(lambda pod, request: True)}), id="a static method"),
        pytest.param(plugin_class({"applies": classmethod(lambda cls, pod, request: True)}), id="a class method"),
        pytest.param(plugin_class({}, AdmissionPlugin, BindingPlugin), id="both kinds"),
        pytest.param(type("Derived", (plugin_class({"pre_bind": binding}),), {}), id="an inherited method"),
    ],
)  # fmt: skip
def test_a_correct_class_has_no_errors(candidate: type) -> None:
    assert messages(candidate) == []


@pytest.mark.parametrize("candidate", [Plugin, Helper, len, None, plugin_class({"name": "another"})])
def test_what_is_no_plugin_of_that_name_is_one_error(candidate: Any) -> None:
    (error,) = class_errors(candidate, "licence", PATH)
    assert (error.rule.id, error.path, error.value) == ("config/plugin", PATH, "licence")


@pytest.mark.parametrize("point", sorted(POINTS))
def test_every_extension_point_is_checked(point: str) -> None:
    recording = {**vars(AdmissionPlugin), **vars(BindingPlugin), "has_side_effects": lambda self, request, pod: True}
    assert messages(plugin_class({point: recording[point]}, AdmissionPlugin, BindingPlugin)) == []
    two_too_few = plugin_class({point: lambda: None}, AdmissionPlugin, BindingPlugin)
    assert "plugin/arguments" in [rule for rule, _ in messages(two_too_few)]


class Seats(PluginConfig):
    seats: int = 3


def test_the_type_parameter_is_the_model_of_the_arguments() -> None:
    class Both(AdmissionPlugin[Seats], BindingPlugin[Seats]):
        name = "both"

    class Derived(Both):
        name = "derived"

    class Plain(BindingPlugin):
        name = "plain"

    assert [kind.config_model for kind in (Both, Derived, Plain)] == [Seats, Seats, PluginConfig]


# --- the programs ---


def distribution(folder: Path, distribution_name: str, plugin_name: str, body: str) -> None:
    """Put a distribution with one plugin into a folder, as an installation would."""
    module = f"bowline_test_{distribution_name}"
    (folder / f"{module}.py").write_text(
        "from bowline import BindingPlugin, Status\n\n\n"
        f"class Licence(BindingPlugin):\n    name = {plugin_name!r}\n{body}\n"
    )
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution_name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[bowline.plugins]\n{plugin_name} = {module}:Licence\n")


MISSPELT = "    async def prebind(self, ctx):\n        return Status.fatal('no licence')"
CORRECT = "    async def pre_bind(self, ctx):\n        return Status.fatal('no licence')"


def status_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: Callable[[], Any] | str, entry: str) -> Any:
    """The exit status of a program with a configuration that enables the plugin."""
    config, pod = tmp_path / "config.yaml", tmp_path / "pod.yaml"
    config.write_text(f"apiVersion: config.bowline.dev/v1alpha1\nkind: BowlineConfiguration\nplugins: [{entry}]\n")
    pod.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: pod}\nspec: {containers: [{name: main, image: x}]}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    if isinstance(program, str):
        return bowline_cli.main.main([program, "--config", str(config), str(pod)])
    monkeypatch.setattr("sys.argv", ["program", f"--config={config}", "--server=https://127.0.0.1:1", "--check"])
    with pytest.raises(SystemExit) as exit_info:
        program()
    return exit_info.value.code


PROGRAMS = [
    pytest.param(bowline_webhook.app.main, id="webhook"),
    pytest.param(bowline_reconciler.app.main, id="reconciler"),
    pytest.param(LINT, id="lint"),
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_program_starts_with_a_misspelt_method(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], program: Any
) -> None:
    distribution(tmp_path, "misspelt", "licence", MISSPELT)
    assert status_of(monkeypatch, tmp_path, program, "{name: licence}") == 2
    assert 'plugins[0].name: "licence.prebind": is never called' in capsys.readouterr().err


@pytest.mark.parametrize("program", PROGRAMS[:2])  # lint reads what is installed only if the configuration names it
def test_no_process_starts_with_a_plugin_that_has_the_name_of_a_built_in_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], program: Any
) -> None:
    distribution(tmp_path, "clash", "gpu_request", CORRECT)
    assert status_of(monkeypatch, tmp_path, program, "") == 2
    text = capsys.readouterr().err
    assert '"gpu_request": is the name of a built-in plugin and of clash (bowline_test_clash:Licence)' in text
