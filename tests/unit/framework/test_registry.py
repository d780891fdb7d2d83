"""From a configuration to plugins: which, in what order, and every fault at once."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import pytest

from shared.framework.config import ConfigurationError, PluginEntry, Settings
from shared.framework.gates import Gate, Stage
from shared.framework.plugin import Plugin, PluginConfig
from shared.framework.registry import LAST, Builtin, PluginClass, Registry


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


def faults(found: Registry, wanted: Settings) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        found.build(wanted)
    return [str(fault) for fault in caught.value.faults]


def test_the_enabled_built_ins_come_in_their_order() -> None:
    assert built(registry(), settings()) == ["one", LAST]


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        pytest.param([{"name": "off"}], ["one", "off", LAST], id="one that is off is switched on, in its place"),
        pytest.param([{"name": "one", "enabled": False}], [LAST], id="one that is on is switched off"),
        pytest.param([{"name": "two"}], ["one", "two", LAST], id="one from outside goes before the last"),
        pytest.param(
            [{"name": "three"}, {"name": "two"}], ["one", "three", "two", LAST], id="two of them in the file's order"
        ),
        pytest.param([{"name": "two", "enabled": False}], ["one", LAST], id="one from outside stays off"),
    ],
)
def test_the_configuration_is_merged_by_name(entries: list[dict[str, Any]], expected: list[str]) -> None:
    offers = {name: lambda name=name: plugin(name) for name in ("two", "three")}
    assert built(registry(offers=offers), settings(*entries)) == expected


def test_distributions_are_only_looked_at_when_somebody_asks() -> None:
    def explode() -> dict[str, Callable[[], PluginClass]]:
        raise AssertionError("looked")

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

    def test_an_unknown_gate_is_refused(self) -> None:
        found = faults(registry(gates=self.GATES), settings(feature_gates={"Nope": True}))
        assert found == ["featureGates.Nope: true: is no feature gate; known: New"]


def test_a_built_in_name_registered_twice_is_a_bug() -> None:
    with pytest.raises(ValueError, match="one"):
        registry(Builtin(plugin("one")), Builtin(plugin("one")))


def _broken() -> PluginClass:
    raise ImportError("no such library")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        pytest.param(
            settings({"name": "nope"}), 'plugins[0].name: "nope": is no plugin; known:', id="an unknown one"
        ),
        pytest.param(
            settings({"name": "one"}, {"name": "one"}), 'plugins[1].name: "one": is given twice', id="one given twice"
        ),
        pytest.param(
            settings({"name": "one", "args": {"sise": 3}}), "plugins[0].args.sise: 3: is not a known", id="wrong args"
        ),
        pytest.param(
            settings({"name": "one", "args": {"size": "x"}}), 'plugins[0].args.size: "x": ', id="args of a wrong type"
        ),
        pytest.param(settings({"name": "broken"}), "cannot be loaded: ImportError", id="one that cannot be imported"),
        pytest.param(settings({"name": "function"}), "must name a subclass of Plugin", id="one that is no class"),
        pytest.param(settings({"name": "alias"}), "must name a subclass of Plugin", id="one of another name"),
        pytest.param(settings(plugin_order=("one",)), f"missing: {LAST}", id="an order that leaves one out"),
        pytest.param(
            settings(plugin_order=("one", LAST, "off")), 'pluginOrder: "off": is not enabled', id="one that is off"
        ),
        pytest.param(
            settings(plugin_order=("one", "one", LAST)), 'pluginOrder: "one": is given twice', id="one ordered twice"
        ),
    ],
)
def test_a_fault_of_the_configuration_is_named(wanted: Settings, expected: str) -> None:
    offers = {"broken": _broken, "function": lambda: len, "alias": lambda: plugin("another")}
    found = faults(registry(offers=offers), wanted)
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
        pytest.param([plugin("a", after=("b",))], [], id="one to come after may be missing"),
        pytest.param([plugin("a", after=("b",)), plugin("b")], ["must come after b"], id="the order is wrong"),
        pytest.param(
            [plugin("a", requires=("b",)), plugin("b")], ["must come after b"], id="a required one is later"
        ),
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
    shown = faults(found, settings())
    assert len(shown) == len(expected)
    assert all(part in text for part, text in zip(expected, shown, strict=True))


def test_everything_that_is_wrong_is_listed_at_once() -> None:
    wanted = settings(
        {"name": "nope"},
        {"name": "one", "args": {"x": 1, "y": 2}},
        {"name": "one"},
        {"name": "off"},
        plugin_order=("one", "ghost", "off", LAST),
        feature_gates={"Nope": True},
    )
    found = faults(registry(Builtin(plugin("one")), Builtin(plugin("off", requires=("gone",))), BUILTINS[-1]), wanted)
    parts = [
        "featureGates.Nope",
        "plugins[0].name",
        "plugins[2].name",
        "pluginOrder",
        "plugins[3]",
        "plugins[1].args.x",
        "plugins[1].args.y",
    ]
    assert [text.split(": ")[0] for text in found] == parts
