"""From a configuration to plugins: which, in what order, and every error."""

import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from bowline.api.field_error import FieldError
from bowline.framework.config import ConfigurationError, PluginEntry, Settings
from bowline.framework.interface.access import Access, AccessRule
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.plugin import AdmissionPlugin, PluginConfig
from bowline.framework.plugin_order import PluginClass
from bowline.framework.registry import ENTRY_POINT_GROUP, Builtin, Registry
from bowline.framework.registry import LAST_PLUGIN as LAST


class Args(PluginConfig):
    size: int = 1


def plugin(
    name: str, requires: tuple[str, ...] = (), after: tuple[str, ...] = (), gate: str | None = None
) -> PluginClass:
    members: dict[str, Any] = {"name": name, "config_model": Args, "requires": requires, "after": after, "gate": gate}
    return type(name, (BindingPlugin,), members)


BUILTINS = (Builtin(plugin("one")), Builtin(plugin("off"), is_enabled=False), Builtin(plugin(LAST)))


def registry_of(*builtins: Builtin, offers: Mapping[str, Callable[[], Any]] | None = None) -> Registry:
    loaders = dict(offers or {})
    kind = type("Offer", (EntryPoint,), {"load": lambda point: loaders[point.name]()})
    return Registry(builtins or BUILTINS, lambda: [kind(name, "tests", ENTRY_POINT_GROUP) for name in loaders])


def settings_of(*plugins: dict[str, Any], **more: Any) -> Settings:
    return Settings(plugins=tuple(PluginEntry(**entry) for entry in plugins), **more)


def plugin_names(registry: Registry, settings: Settings) -> list[str]:
    return [entry.name for entry in registry.build(settings)]


def errors(registry: Registry, settings: Settings) -> list[FieldError]:
    with pytest.raises(ConfigurationError) as caught:
        registry.build(settings)
    return list(caught.value.errors)


def places(faults: Iterable[FieldError]) -> list[tuple[str, str]]:
    """The rule and the path of each error."""
    return [(fault.rule.id, fault.path) for fault in faults]


@pytest.mark.parametrize(
    ("entries", "expectation"),
    [
        pytest.param([{"name": "off"}], ["one", "off", LAST], id="a disabled one is enabled, in its place"),
        pytest.param([{"name": "one", "enabled": False}], [LAST], id="an enabled one is disabled"),
        pytest.param([{"name": "two"}], ["one", "two", LAST], id="a third-party one is before the last"),
        pytest.param([{"name": "three"}, {"name": "two"}], ["one", "three", "two", LAST],
            id="two of them in the file's order"),
        pytest.param([{"name": "two", "enabled": False}], ["one", LAST], id="a disabled third-party one"),
    ],
)  # fmt: skip
def test_the_configuration_is_merged_by_name(entries: list[dict[str, Any]], expectation: list[str]) -> None:
    offers = {name: lambda name=name: plugin(name) for name in ("two", "three")}
    assert plugin_names(registry_of(offers=offers), settings_of(*entries)) == expectation


def test_a_plugin_that_the_configuration_does_not_name_is_not_loaded() -> None:
    def explode() -> PluginClass:
        raise AssertionError("loaded")

    assert registry_of(offers={"two": explode}).build(settings_of({"name": "one"}))


class Policy(AdmissionPlugin):
    name = "policy"

    def validate_pod(self, pod: Any, old: Any, info: Any) -> Any:
        return ()


class Writes(BindingPlugin):
    name = "writes"
    access = Access(rules=(AccessRule("configmaps", ("create",), name_prefix="seat-"),))


@pytest.mark.parametrize(
    ("grants", "expectation"),
    [
        pytest.param(None, [], id="nobody says what is granted, as offline"),
        pytest.param(("policy", "writes"), [], id="all"),
        pytest.param(("writes",), ["plugins[0]"], id="a policy is not called"),
        pytest.param((), ["plugins[0]", "plugins[1]"], id="none"),
    ],
)
def test_a_plugin_whose_access_is_not_granted_is_an_error(
    grants: tuple[str, ...] | None, expectation: list[str]
) -> None:
    offers = {"policy": lambda: Policy, "writes": lambda: Writes, "two": lambda: plugin("two")}
    settings = settings_of({"name": "policy"}, {"name": "writes"}, {"name": "two"}, granted_plugins=grants)
    registry = registry_of(offers=offers)
    if not expectation:
        assert plugin_names(registry, settings) == ["one", "policy", "writes", "two", LAST]
        return
    assert places(errors(registry, settings)) == [("plugin/access", path) for path in expectation]


def test_an_order_of_its_own_replaces_the_built_in_one() -> None:
    assert plugin_names(registry_of(), settings_of(plugin_order=(LAST, "one"))) == [LAST, "one"]


def _broken() -> PluginClass:
    raise ImportError("no such library")


def _exits() -> PluginClass:
    sys.exit(3)


WRONG_SETTINGS: list[Any] = [
    pytest.param(settings_of({"name": "nope"}), ("config/plugin", "plugins[0].name"),
        'plugins[0].name: "nope": is no plugin; known:', id="an unknown one"),
    pytest.param(settings_of({"name": "one"}, {"name": "one"}), ("config/plugin", "plugins[1].name"),
        'plugins[1].name: "one": is listed twice', id="one given twice"),
    pytest.param(settings_of({"name": "one", "args": {"sise": 3}}), ("one/args", "plugins[0].args.sise"),
        "plugins[0].args.sise: 3: is not a known", id="wrong args"),
    pytest.param(settings_of({"name": "broken"}), ("config/plugin", "plugins[0].name"),
        "cannot be loaded: ImportError", id="one that cannot be imported"),
    pytest.param(settings_of({"name": "exits"}), ("config/plugin", "plugins[0].name"),
        "cannot be loaded: SystemExit(3)", id="one that exits at import"),
    pytest.param(settings_of({"name": "fails"}), ("config/plugin", "plugins[0]"),
        "cannot be created: ValueError: needs a socket", id="one whose constructor raises"),
    pytest.param(settings_of({"name": "wrong"}), ("config/plugin", "plugins[0].name"),
        "class attribute `requires` must be a tuple of names", id="one whose class is invalid"),
    pytest.param(settings_of(plugin_order=("one",)), ("config/plugin-order", "pluginOrder"), f"missing: {LAST}",
        id="an order that leaves one out"),
    pytest.param(settings_of(plugin_order=("one", LAST, "off")), ("config/plugin-order", "pluginOrder"),
        'pluginOrder: "off": is not enabled', id="one that is off"),
    pytest.param(settings_of(plugin_order=("one", "one", LAST)), ("config/plugin-order", "pluginOrder"),
        'pluginOrder: "one": is listed twice', id="one ordered twice"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "place", "expectation"), WRONG_SETTINGS)
def test_an_error_of_the_configuration_is_reported(
    settings: Settings, place: tuple[str, str], expectation: str
) -> None:
    (fault,) = errors(registry_of(offers=OFFERS), settings)
    assert places([fault]) == [place]
    assert expectation in str(fault)


def _fails(*_: object) -> None:
    raise ValueError("needs a socket")


OFFERS: dict[str, Callable[[], Any]] = {
    "broken": _broken,
    "exits": _exits,
    "fails": lambda: depends("fails", __init__=_fails),
    "wrong": lambda: depends("wrong", requires="base"),
}


@pytest.mark.parametrize(
    ("builtins", "expectation"),
    [
        pytest.param([plugin("a", requires=("b",))], ["config/plugin-requires"], id="a required one is missing"),
        pytest.param([plugin("a", after=("b",))], [], id="an absent one in after"),
        pytest.param([plugin("a", requires=("b",)), plugin("b", after=("a",))], ["config/plugin-cycle"],
            id="two in a circle"),
        pytest.param([plugin("a", after=("a",))], ["config/plugin-cycle"], id="one after itself"),
    ],
)  # fmt: skip
def test_dependencies(builtins: list[PluginClass], expectation: list[str]) -> None:
    registry = registry_of(*map(Builtin, builtins))
    if not expectation:
        assert plugin_names(registry, settings_of())
        return
    assert [fault.rule.id for fault in errors(registry, settings_of())] == expectation


def test_all_errors_are_reported_together() -> None:
    settings = settings_of(
        {"name": "nope"},
        {"name": "one", "args": {"x": 1, "y": 2}},
        {"name": "one"},
        {"name": "off"},
        plugin_order=("one", "ghost", "off", LAST),
    )
    faults = errors(
        registry_of(Builtin(plugin("one")), Builtin(plugin("off", requires=("absent",))), BUILTINS[-1]), settings
    )
    parts = [
        "plugins[0].name",
        "plugins[2].name",
        "pluginOrder",
        "plugins[3]",
        "plugins[1].args.x",
        "plugins[1].args.y",
    ]
    assert [fault.path for fault in faults] == parts


def depends(name: str, **attributes: Any) -> PluginClass:
    return type(name, (plugin(name),), attributes)


@pytest.mark.parametrize(
    ("builtins", "entries", "expectation"),
    [
        pytest.param([plugin("a"), plugin("b")], [], "a b", id="no dependency keeps the order"),
        pytest.param([plugin("a", after=("b",)), plugin("b"), plugin("c")], [], "b a c", id="after"),
        pytest.param([plugin("a", requires=("c",)), plugin("b"), plugin("c")], [], "b c a", id="requires"),
        pytest.param([plugin("a"), plugin("b"), depends("c", before=("a",))], [], "b c a", id="before"),
        pytest.param([plugin("a")], ["two", "base"], "a base two", id="plugins from outside, in any order"),
    ],
)
def test_the_default_order_follows_the_dependencies_and_is_stable(
    builtins: list[PluginClass], entries: list[str], expectation: str
) -> None:
    offers = {"two": lambda: plugin("two", requires=("base",)), "base": lambda: plugin("base")}
    registry = registry_of(*map(Builtin, [*builtins, plugin(LAST)]), offers=offers)
    assert plugin_names(registry, settings_of(*({"name": name} for name in entries))) == [*expectation.split(), LAST]


def test_a_configured_order_that_breaks_a_dependency_is_an_error() -> None:
    registry = registry_of(Builtin(depends("a", before=("b",))), Builtin(plugin("b")))
    assert places(errors(registry, settings_of(plugin_order=("b", "a")))) == [
        ("config/plugin-order", "plugins[name=b]")
    ]


class Required(PluginConfig):
    size: int


@pytest.mark.parametrize(
    ("args", "expectation"),
    [
        pytest.param({"nonsense": 1}, ["plugins[0].args.nonsense"], id="an unknown one"),
        pytest.param({"size": "x"}, ["plugins[0].args.size"], id="a wrong one"),
        pytest.param({}, [], id="none, though one is required"),
    ],
)
def test_args_of_a_disabled_plugin_are_checked(args: dict[str, Any], expectation: list[str]) -> None:
    registry = registry_of(Builtin(depends("off", config_model=Required), is_enabled=False), Builtin(plugin(LAST)))
    settings = settings_of({"name": "off", "enabled": False, "args": args})
    assert (
        [fault.path for fault in errors(registry, settings)] if expectation else plugin_names(registry, settings)
    ) == (expectation or [LAST])
