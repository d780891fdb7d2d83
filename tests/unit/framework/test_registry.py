"""From a configuration to plugins: which, in what order, and every error."""

import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from shared.framework.config import ConfigurationError, PluginEntry, Settings
from shared.framework.gates import Gate, Stage
from shared.framework.plugin import Plugin, PluginConfig
from shared.framework.plugin_order import PluginClass
from shared.framework.registry import LAST_PLUGIN as LAST
from shared.framework.registry import Builtin, Registry


class Args(PluginConfig):
    size: int = 1


def plugin(
    name: str, requires: tuple[str, ...] = (), after: tuple[str, ...] = (), gate: str | None = None
) -> PluginClass:
    members: dict[str, Any] = {"name": name, "config_model": Args, "requires": requires, "after": after, "gate": gate}
    return type(name, (Plugin,), members)


BUILTINS = (Builtin(plugin("one")), Builtin(plugin("off"), enabled=False), Builtin(plugin(LAST)))


def registry(
    *builtins: Builtin, offers: Mapping[str, Callable[[], Any]] | None = None, gates: tuple[Gate, ...] = ()
) -> Registry:
    return Registry(builtins or BUILTINS, gates, lambda: dict(offers or {}))


def settings(*plugins: dict[str, Any], **more: Any) -> Settings:
    return Settings(plugins=tuple(PluginEntry(**entry) for entry in plugins), **more)


def built(found: Registry, wanted: Settings) -> list[str]:
    return [made.name for made in found.build(wanted)]


def errors(found: Registry, wanted: Settings) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        found.build(wanted)
    return [str(fault) for fault in caught.value.errors]


def test_enabled_built_ins_have_their_order() -> None:
    assert built(registry(), settings()) == ["one", LAST]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param([{"name": "off"}], ["one", "off", LAST], id="a disabled one is enabled, in its place"),
        pytest.param([{"name": "one", "enabled": False}], [LAST], id="an enabled one is disabled"),
        pytest.param([{"name": "two"}], ["one", "two", LAST], id="a third-party one is before the last"),
        pytest.param(
            [{"name": "three"}, {"name": "two"}], ["one", "three", "two", LAST], id="two of them in the file's order"
        ),
        pytest.param([{"name": "two", "enabled": False}], ["one", LAST], id="a disabled third-party one"),
    ],
)
def test_the_configuration_is_merged_by_name(entries: list[dict[str, Any]], expected: list[str]) -> None:
    offers = {name: lambda name=name: plugin(name) for name in ("two", "three")}
    assert built(registry(offers=offers), settings(*entries)) == expected


def test_distributions_are_only_read_when_needed() -> None:
    def explode() -> dict[str, Callable[[], PluginClass]]:
        raise AssertionError("loaded")

    assert Registry(BUILTINS, (), explode).build(settings({"name": "one"}))


def test_arguments_reach_the_plugin() -> None:
    made = registry().build(settings({"name": "one", "args": {"size": 3}}))
    assert made[0].args == Args(size=3)


def test_an_order_of_its_own_replaces_the_built_in_one() -> None:
    assert built(registry(), settings(plugin_order=(LAST, "one"))) == [LAST, "one"]


class TestGates:
    GATES: ClassVar = (Gate("New", Stage.ALPHA, default=False, description=""),)

    @pytest.mark.parametrize(("value", "expected"), [(True, ["gated"]), (False, [])])
    def test_a_plugin_behind_a_gate_exists_only_with_it(self, value: bool, expected: list[str]) -> None:
        found = registry(Builtin(plugin("gated", gate="New")), gates=self.GATES)
        assert built(found, settings(feature_gates={"New": value})) == expected

    def test_an_unknown_gate_is_rejected(self) -> None:
        found = errors(registry(gates=self.GATES), settings(feature_gates={"Nope": True}))
        assert found == ["featureGates.Nope: true: is no feature gate; known: New"]


def test_a_built_in_name_registered_twice_is_a_bug() -> None:
    with pytest.raises(ValueError, match="one"):
        registry(Builtin(plugin("one")), Builtin(plugin("one")))


def _broken() -> PluginClass:
    raise ImportError("no such library")


def _exits() -> PluginClass:
    sys.exit(3)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param(
            settings({"name": "nope"}), 'plugins[0].name: "nope": is no plugin; known:', id="an unknown one"
        ),
        pytest.param(
            settings({"name": "one"}, {"name": "one"}),
            'plugins[1].name: "one": is listed twice',
            id="one given twice",
        ),
        pytest.param(
            settings({"name": "one", "args": {"sise": 3}}), "plugins[0].args.sise: 3: is not a known", id="wrong args"
        ),
        pytest.param(
            settings({"name": "one", "args": {"size": "x"}}), 'plugins[0].args.size: "x": ', id="args of a wrong type"
        ),
        pytest.param(settings({"name": "broken"}), "cannot be loaded: ImportError", id="one that cannot be imported"),
        pytest.param(settings({"name": "exits"}), "cannot be loaded: SystemExit(3)", id="one that exits at import"),
        pytest.param(settings({"name": "function"}), "must name a subclass of Plugin", id="one that is not a class"),
        pytest.param(settings({"name": "alias"}), "must name a subclass of Plugin", id="one of another name"),
        pytest.param(settings(plugin_order=("one",)), f"missing: {LAST}", id="an order that leaves one out"),
        pytest.param(
            settings(plugin_order=("one", LAST, "off")), 'pluginOrder: "off": is not enabled', id="one that is off"
        ),
        pytest.param(
            settings(plugin_order=("one", "one", LAST)), 'pluginOrder: "one": is listed twice', id="one ordered twice"
        ),
    ],
)
def test_an_error_of_the_configuration_is_reported(wanted: Settings, expected: str) -> None:
    offers = {"broken": _broken, "exits": _exits, "function": lambda: len, "alias": lambda: plugin("another")}
    found = errors(registry(offers=offers), wanted)
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(
    ("builtins", "expected"),
    [
        pytest.param(
            [plugin("a", requires=("b",))],
            ["requires plugin b, which is not enabled"],
            id="a required one is missing",
        ),
        pytest.param([plugin("a", after=("b",))], [], id="an absent one in after"),
        pytest.param(
            [plugin("a", requires=("b",)), plugin("b", after=("a",))],
            ["in a circle: a -> b -> a"],
            id="two in a circle",
        ),
        pytest.param([plugin("a", after=("a",))], ["in a circle: a -> a"], id="one after itself"),
    ],
)
def test_dependencies(builtins: list[PluginClass], expected: list[str]) -> None:
    found = registry(*map(Builtin, builtins))
    if not expected:
        assert built(found, settings())
        return
    shown = errors(found, settings())
    assert len(shown) == len(expected)
    assert all(part in text for part, text in zip(expected, shown, strict=True))


def test_all_errors_are_reported_together() -> None:
    wanted = settings(
        {"name": "nope"},
        {"name": "one", "args": {"x": 1, "y": 2}},
        {"name": "one"},
        {"name": "off"},
        plugin_order=("one", "ghost", "off", LAST),
        feature_gates={"Nope": True},
    )
    found = errors(
        registry(Builtin(plugin("one")), Builtin(plugin("off", requires=("absent",))), BUILTINS[-1]), wanted
    )
    parts = [
        "plugins[0].name",
        "plugins[2].name",
        "featureGates.Nope",
        "pluginOrder",
        "plugins[3]",
        "plugins[1].args.x",
        "plugins[1].args.y",
    ]
    assert [text.split(": ")[0] for text in found] == parts


def depends(name: str, **attributes: Any) -> PluginClass:
    return type(name, (plugin(name),), attributes)


@pytest.mark.parametrize(
    ("builtins", "entries", "expected"),
    [
        pytest.param([plugin("a"), plugin("b")], [], "a b", id="no dependency keeps the order"),
        pytest.param([plugin("a", after=("b",)), plugin("b"), plugin("c")], [], "b a c", id="after"),
        pytest.param([plugin("a", requires=("c",)), plugin("b"), plugin("c")], [], "b c a", id="requires"),
        pytest.param([plugin("a"), plugin("b"), depends("c", before=("a",))], [], "b c a", id="before"),
        pytest.param([plugin("a"), depends("b", before=("absent",))], [], "a b", id="before one that is not enabled"),
        pytest.param([plugin("a")], ["two", "base"], "a base two", id="plugins from outside, in any order"),
    ],
)
def test_the_default_order_follows_the_dependencies_and_is_stable(
    builtins: list[PluginClass], entries: list[str], expected: str
) -> None:
    offers = {"two": lambda: plugin("two", requires=("base",)), "base": lambda: plugin("base")}
    found = registry(*map(Builtin, [*builtins, plugin(LAST)]), offers=offers)
    assert built(found, settings(*({"name": name} for name in entries))) == [*expected.split(), LAST]


def test_a_configured_order_that_breaks_a_dependency_is_an_error() -> None:
    found = registry(Builtin(depends("a", before=("b",))), Builtin(plugin("b")))
    assert errors(found, settings(plugin_order=("b", "a"))) == [
        'plugins[name=b]: "b": must follow a; change pluginOrder so that it does'
    ]


class TestGatesOfPlugins:
    ALPHA = Gate("MyAlpha", Stage.ALPHA, default=False, description="Mine.")
    BETA = Gate("MyBeta", Stage.BETA, default=True, description="Mine as well.")

    def offered(self, **attributes: Any) -> Registry:
        made = depends("mine", **{"gates": (self.ALPHA, self.BETA), **attributes})
        return registry(offers={"mine": lambda: made})

    def test_a_third_party_plugin_declares_its_gates_and_their_defaults(self) -> None:
        wanted = settings({"name": "mine"}, feature_gates={"MyAlpha": True})
        effective, plugins = self.offered(gate="MyAlpha").configure(wanted)
        assert effective.feature_gates == {"MyAlpha": True, "MyBeta": True}
        assert [made.name for made in plugins] == ["one", "mine", LAST]
        assert all(made.settings.feature_gates == effective.feature_gates for made in plugins)

    def test_a_gate_of_a_plugin_that_is_named_nowhere_does_not_exist(self) -> None:
        (fault,) = errors(self.offered(), settings(feature_gates={"MyAlpha": True}))
        assert fault.startswith("featureGates.MyAlpha: true: is no feature gate")

    def test_a_plugin_enabled_by_name_without_its_gate_is_an_error(self) -> None:
        (fault,) = errors(self.offered(gate="MyAlpha"), settings({"name": "mine"}))
        assert fault.startswith(
            'plugins[0]: "mine": is enabled, but its feature gate MyAlpha is off; set featureGates'
        )

    def test_a_gate_that_no_plugin_declares_is_an_error(self) -> None:
        (fault,) = errors(self.offered(gate="Ghost"), settings({"name": "mine"}))
        assert fault.startswith('plugins[0]: "mine": has feature gate Ghost, which does not exist')

    def test_a_gate_declared_twice_with_different_defaults_is_an_error(self) -> None:
        other = depends("one", gates=(Gate("MyAlpha", Stage.GA, default=True, description="Another."),))
        found = registry(
            Builtin(other), Builtin(plugin(LAST)), offers={"mine": lambda: depends("mine", gates=(self.ALPHA,))}
        )
        (fault,) = errors(found, settings({"name": "mine"}))
        assert "declares feature gate MyAlpha, which exists with another definition" in fault


class Required(PluginConfig):
    size: int


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        pytest.param({"nonsense": 1}, ["plugins[0].args.nonsense"], id="an unknown one"),
        pytest.param({"size": "x"}, ["plugins[0].args.size"], id="a wrong one"),
        pytest.param({}, [], id="none, though one is required"),
    ],
)
def test_args_of_a_disabled_plugin_are_checked(args: dict[str, Any], expected: list[str]) -> None:
    found = registry(Builtin(depends("off", config_model=Required), enabled=False), Builtin(plugin(LAST)))
    wanted = settings({"name": "off", "enabled": False, "args": args})
    assert ([text.split(": ")[0] for text in errors(found, wanted)] if expected else built(found, wanted)) == (
        expected or [LAST]
    )


def fails(self: Plugin, args: Any, wanted: Settings) -> None:
    raise ValueError("needs a socket")


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        pytest.param(
            {"__init__": fails}, "cannot be created: ValueError: needs a socket", id="a constructor that raises"
        ),
        pytest.param({"requires": "base"}, "class attribute `requires` must be a tuple of names", id="requires"),
        pytest.param({"before": ["base"]}, "class attribute `before` must be a tuple of names", id="before"),
        pytest.param({"gates": ("MyAlpha",)}, "class attribute `gates` must be a tuple of Gate", id="gates"),
        pytest.param({"budgets": {"call_s": 1}}, "class attribute `budgets` must be a Budgets", id="budgets"),
        pytest.param({"config_model": dict}, "class attribute `config_model` must be a subclass", id="config_model"),
    ],
)
def test_a_mistake_of_the_plugin_is_an_error_with_its_path(attributes: dict[str, Any], expected: str) -> None:
    found = registry(
        offers={"mine": lambda: depends("mine", **attributes), "two": lambda: type("Two", (Plugin,), {})}
    )
    shown = errors(found, settings({"name": "mine"}, {"name": "two"}))
    assert len(shown) == 2
    assert any(text.startswith("plugins[0]") and expected in text for text in shown)
    assert any(text.startswith("plugins[1].name") and "class attribute `name`" in text for text in shown)
