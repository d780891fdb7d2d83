"""Builds plugins from the configuration: which are enabled, in what order, with which arguments and feature gates.

Built-ins are given as one tuple; others are found by the entry point group ``bowline.plugins``, only when the
configuration names them. All errors, of the configuration's author or of a plugin's, are collected and reported
together. No plugin is returned unless there are none.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from pydantic import BaseModel, ValidationError

from shared.api.field_error import FieldError
from shared.api.schema import schema_errors
from shared.framework.config import ConfigurationError, PluginEntry, Settings
from shared.framework.gates import FeatureGates, Gate, resolve_gates
from shared.framework.plugin import Budgets, Plugin
from shared.framework.plugin_order import PluginClass, dependency_errors, sorted_stably

ENTRY_POINT_GROUP = "bowline.plugins"
# The last resort for binding; external plugins precede it.
LAST_PLUGIN = "default_binder"

Discover = Callable[[], Mapping[str, Callable[[], PluginClass]]]


def installed_plugins() -> dict[str, Callable[[], PluginClass]]:
    """Return the loaders of the plugins in installed distributions, by name."""
    return {point.name: point.load for point in entry_points(group=ENTRY_POINT_GROUP)}


@dataclass(frozen=True, slots=True)
class Builtin:
    """A plugin that ships with Bowline."""

    plugin: PluginClass
    enabled: bool = True


@dataclass(slots=True)
class _Selection:
    """Intermediate result: the named classes, their configuration entries, the enabled classes, and the errors so
    far.
    """

    errors: list[FieldError] = field(default_factory=list)
    named: dict[str, PluginClass] = field(default_factory=dict)
    entries: dict[str, tuple[str, PluginEntry]] = field(default_factory=dict)
    enabled: dict[str, PluginClass] = field(default_factory=dict)

    def path(self, name: str) -> str:
        """Return the path of a plugin's configuration entry, or of the one it would have."""
        return self.entries[name][0] if name in self.entries else f"plugins[name={name}]"

    def error(self, name: str, message: str, rule: str = "config/plugin") -> None:
        """Add an error of a plugin as a whole."""
        self.errors.append(FieldError(rule, self.path(name), name, message))


class Registry:
    """Builds the plugins of a configuration."""

    def __init__(
        self, builtins: Sequence[Builtin], gates: Iterable[Gate] = (), discover: Discover = installed_plugins
    ) -> None:
        names = [builtin.plugin.name for builtin in builtins]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"plugin name registered twice: {', '.join(sorted(twice))}")
        self._builtins = {builtin.plugin.name: builtin for builtin in builtins}
        self._gates = tuple(gates)
        self._discover = discover

    def build(self, settings: Settings) -> tuple[Plugin, ...]:
        """Return the enabled plugins in order. Raises ConfigurationError with all errors."""
        return self.configure(settings)[1]

    def configure(self, settings: Settings) -> tuple[Settings, tuple[Plugin, ...]]:
        """Return the settings with the effective value of every feature gate, and the enabled plugins in order.

        Raises ConfigurationError with all errors.
        """
        chosen = self._select(settings)
        gates = self._resolve_gates(settings, chosen)
        effective = settings.model_copy(update={"feature_gates": dict(gates.values)})
        self._leave_out_gated(chosen, gates)
        order = self._order(settings, chosen)
        chosen.errors += dependency_errors(order, {found.name: chosen.path(found.name) for found in order})
        args = {
            name: self._args(name, chosen) for name in chosen.named if name in chosen.entries.keys() | chosen.enabled
        }
        plugins = []
        for found in order:
            try:
                # None: invalid, and reported.
                if args[found.name] is not None:
                    plugins.append(found(args[found.name], effective))
            except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code; reported, and the process does not start
                chosen.error(found.name, f"cannot be created: {type(error).__name__}: {error}")
        if chosen.errors:
            raise ConfigurationError(chosen.errors)
        return effective, tuple(plugins)

    # --- which plugins ---

    def _select(self, settings: Settings) -> _Selection:
        chosen = _Selection()
        for name, builtin in self._builtins.items():
            chosen.named[name] = builtin.plugin
            if builtin.enabled:
                chosen.enabled[name] = builtin.plugin
        installed = self._discover() if any(e.name not in self._builtins for e in settings.plugins) else {}
        for index, entry in enumerate(settings.plugins):
            path = f"plugins[{index}]"
            if entry.name in chosen.entries:
                first = chosen.entries[entry.name][0]
                error = FieldError("config/plugin", f"{path}.name", entry.name, f"is listed twice, first at {first}")
                chosen.errors.append(error)
                continue
            chosen.entries[entry.name] = (path, entry)
            if entry.name not in self._builtins:
                found = self._load(entry.name, installed, chosen)
                if found is None:
                    continue
                chosen.named[entry.name] = found
            if entry.enabled:
                chosen.enabled[entry.name] = chosen.named[entry.name]
            else:
                chosen.enabled.pop(entry.name, None)
        return chosen

    def _load(
        self, name: str, installed: Mapping[str, Callable[[], PluginClass]], chosen: _Selection
    ) -> PluginClass | None:
        path = f"{chosen.path(name)}.name"
        if name not in installed:
            known = ", ".join(sorted({*self._builtins, *installed}))
            message = f"is no plugin; known: {known}. Install its distribution or correct the name"
            chosen.errors.append(FieldError("config/plugin", path, name, message))
            return None
        try:
            found = installed[name]()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - foreign code; reported, and the process does not start
            chosen.errors.append(FieldError("config/plugin", path, name, f"cannot be loaded: {error!r}"))
            return None
        invalid = class_error(found, name)
        if invalid is not None:
            chosen.errors.append(FieldError("config/plugin", path, name, invalid))
            return None
        return found

    # --- feature gates ---

    def _resolve_gates(self, settings: Settings, chosen: _Selection) -> FeatureGates:
        known = {gate.name: gate for gate in self._gates}
        for name, found in chosen.named.items():
            for gate in found.gates:
                if known.setdefault(gate.name, gate) != gate:
                    message = f"declares feature gate {gate.name}, which exists with another definition; rename it"
                    chosen.error(name, message, "config/feature-gate")
        gates, errors = resolve_gates(settings.feature_gates, known.values())
        chosen.errors += errors
        return gates

    def _leave_out_gated(self, chosen: _Selection, gates: FeatureGates) -> None:
        """Remove the plugins whose gate is off. It is an error if the configuration enables one by name."""
        for name, found in list(chosen.enabled.items()):
            gate = found.gate
            if gate is None or gates.values.get(gate):
                continue
            del chosen.enabled[name]
            if gate not in gates.values:
                message = f"has feature gate {gate}, which does not exist; declare it in the plugin's gates"
                chosen.error(name, message, "config/feature-gate")
            elif name in chosen.entries:
                message = (
                    f"is enabled, but its feature gate {gate} is off; set featureGates.{gate} to true, or enabled of "
                    "the plugin to false"
                )
                chosen.error(name, message, "config/feature-gate")

    # --- arguments and order ---

    def _args(self, name: str, chosen: _Selection) -> BaseModel | None:
        """Return the validated arguments; None if they are invalid, which is reported.

        A disabled plugin's arguments are validated too, but may be incomplete.
        """
        entry = chosen.entries.get(name)
        try:
            return chosen.named[name].config_model.model_validate(entry[1].args if entry is not None else {})
        except ValidationError as error:
            invalid = [one for one in error.errors() if name in chosen.enabled or one["type"] != "missing"]
            chosen.errors += schema_errors(f"{name}/args", f"{chosen.path(name)}.args", invalid)
            return None

    def _order(self, settings: Settings, chosen: _Selection) -> list[PluginClass]:
        outsiders = [entry.name for entry in settings.plugins if entry.name not in self._builtins]
        names = [name for name in self._builtins if name != LAST_PLUGIN] + outsiders + [LAST_PLUGIN]
        default = sorted_stably([chosen.enabled[name] for name in dict.fromkeys(names) if name in chosen.enabled])
        if not settings.plugin_order:
            return default
        wanted = list(settings.plugin_order)
        for name in dict.fromkeys(wanted):
            if name not in chosen.enabled or wanted.count(name) > 1:
                message = "is not enabled" if name not in chosen.enabled else "is listed twice"
                chosen.errors.append(FieldError("config/plugin-order", "pluginOrder", name, message))
        missing = [found.name for found in default if found.name not in wanted]
        if missing:
            message = f"must name every enabled plugin; missing: {', '.join(missing)}"
            chosen.errors.append(FieldError("config/plugin-order", "pluginOrder", ", ".join(wanted), message))
            return default
        return [chosen.enabled[name] for name in dict.fromkeys(wanted) if name in chosen.enabled]


def _is_tuple_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and all(isinstance(one, kind) for one in value)


# Required types of a plugin's class attributes.
_ATTRIBUTES: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    *((name, "a tuple of names", _is_tuple_of(str)) for name in ("requires", "after", "before")),
    ("gates", "a tuple of Gate", _is_tuple_of(Gate)),
    ("gate", "the name of a feature gate", lambda value: value is None or isinstance(value, str)),
    ("budgets", "a Budgets", lambda value: isinstance(value, Budgets)),
    (
        "config_model",
        "a subclass of PluginConfig",
        lambda value: isinstance(value, type) and issubclass(value, BaseModel),
    ),
)


def class_error(found: Any, name: str) -> str | None:
    """Return why a class cannot be the plugin of that name; None if it can."""
    if not (isinstance(found, type) and issubclass(found, Plugin)) or getattr(found, "name", None) != name:
        return "its entry point must name a subclass of Plugin with a class attribute `name` that is the same"
    for attribute, expected, is_right in _ATTRIBUTES:
        value = getattr(found, attribute)
        if not is_right(value):
            return f"its class attribute `{attribute}` must be {expected}, not {value!r}"
    return None
