"""From names to plugins: which are enabled, in what order, with which arguments.

Built-ins come as one tuple; others by the entry point group ``bowline.plugins``, only when the configuration names
them. Everything that is wrong is collected and reported at once; nothing is built unless all is right.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any

from pydantic import ValidationError

from shared.api.field_error import FieldError
from shared.api.schema import schema_faults
from shared.framework.config import ConfigurationError, Settings
from shared.framework.gates import Gate, resolve_gates
from shared.framework.plugin import Plugin

ENTRY_POINT_GROUP = "bowline.plugins"
# The plugin of last resort; plugins from outside go before it.
LAST = "default_binder"

PluginClass = type[Plugin]
Discover = Callable[[], Mapping[str, Callable[[], PluginClass]]]


def installed_plugins() -> dict[str, Callable[[], PluginClass]]:
    """Return the loaders of the plugins that installed distributions offer, by name."""
    return {point.name: point.load for point in entry_points(group=ENTRY_POINT_GROUP)}


@dataclass(frozen=True, slots=True)
class Builtin:
    """A plugin that ships with Bowline."""

    plugin: PluginClass
    enabled: bool = True


class Registry:
    """Builds the plugins that a configuration asks for."""

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
        """Return the enabled plugins in order. Raises ConfigurationError with everything that is wrong."""
        gates, faults = resolve_gates(settings.feature_gates, self._gates)
        classes, paths = self._select(settings, faults)
        classes = {name: found for name, found in classes.items() if found.gate is None or gates.enabled(found.gate)}
        order = self._order(settings, classes, faults)
        faults += dependency_faults([classes[name] for name in order], paths)
        plugins = []
        for name in order:
            path, raw = paths.get(name, ("", {}))
            try:
                args = classes[name].config_model.model_validate(raw)
            except ValidationError as error:
                faults += schema_faults(f"{name}/args", f"{path}.args", error.errors())
                continue
            plugins.append(classes[name](args, settings))
        if faults:
            raise ConfigurationError(faults)
        return tuple(plugins)

    def _select(
        self, settings: Settings, faults: list[FieldError]
    ) -> tuple[dict[str, PluginClass], dict[str, tuple[str, dict[str, Any]]]]:
        """Return the enabled classes by name, and each configured name's path and args."""
        enabled = {name: builtin.plugin for name, builtin in self._builtins.items() if builtin.enabled}
        paths: dict[str, tuple[str, dict[str, Any]]] = {}
        installed = self._discover() if any(e.name not in self._builtins for e in settings.plugins) else {}
        for index, entry in enumerate(settings.plugins):
            path = f"plugins[{index}]"
            if entry.name in paths:
                faults.append(
                    FieldError(
                        "config/plugin", f"{path}.name", entry.name, f"is given twice, see {paths[entry.name][0]}"
                    )
                )
                continue
            paths[entry.name] = (path, entry.args)
            found = self._find(entry.name, path, installed, faults)
            if found is None:
                continue
            if entry.enabled:
                enabled[entry.name] = found
            else:
                enabled.pop(entry.name, None)
        return enabled, paths

    def _find(
        self, name: str, path: str, installed: Mapping[str, Callable[[], PluginClass]], faults: list[FieldError]
    ) -> PluginClass | None:
        if name in self._builtins:
            return self._builtins[name].plugin
        if name not in installed:
            known = ", ".join(sorted({*self._builtins, *installed}))
            message = f"is no plugin; known: {known}. Install its distribution or mend the name"
            faults.append(FieldError("config/plugin", f"{path}.name", name, message))
            return None
        try:
            found = installed[name]()
        except Exception as error:  # noqa: BLE001 - foreign code at import; reported, and the process does not start
            faults.append(FieldError("config/plugin", f"{path}.name", name, f"cannot be loaded: {error!r}"))
            return None
        if not (isinstance(found, type) and issubclass(found, Plugin)) or found.name != name:
            message = "its entry point must name a subclass of Plugin whose name is the same"
            faults.append(FieldError("config/plugin", f"{path}.name", name, message))
            return None
        return found

    def _order(self, settings: Settings, classes: Mapping[str, PluginClass], faults: list[FieldError]) -> list[str]:
        outsiders = [entry.name for entry in settings.plugins if entry.name not in self._builtins]
        default = [name for name in self._builtins if name != LAST] + outsiders + [LAST]
        default = [name for name in dict.fromkeys(default) if name in classes]
        if not settings.plugin_order:
            return default
        wanted = list(settings.plugin_order)
        for name in dict.fromkeys(wanted):
            if name not in classes or wanted.count(name) > 1:
                message = "is not enabled" if name not in classes else "is given twice"
                faults.append(FieldError("config/plugin-order", "pluginOrder", name, message))
        missing = [name for name in default if name not in wanted]
        if missing:
            message = f"must name every enabled plugin; missing: {', '.join(missing)}"
            faults.append(FieldError("config/plugin-order", "pluginOrder", ", ".join(wanted), message))
            return default
        return [name for name in dict.fromkeys(wanted) if name in classes]


def dependency_faults(
    order: Sequence[PluginClass], paths: Mapping[str, tuple[str, dict[str, Any]]]
) -> list[FieldError]:
    """Check ``requires`` and ``after`` of the ordered plugins: present, before, and without a cycle."""
    position = {found.name: index for index, found in enumerate(order)}
    faults = []
    for found in order:
        path = paths.get(found.name, (f"plugins[name={found.name}]", {}))[0]
        for needed in found.requires:
            if needed not in position:
                message = f"requires plugin {needed}, which is not enabled; enable it or switch {found.name} off"
                faults.append(FieldError("config/plugin-requires", path, found.name, message))
    cycle = _cycle({f.name: [n for n in (*f.requires, *f.after) if n in position] for f in order})
    if cycle:
        message = f"plugins depend on each other in a circle: {' -> '.join(cycle)}"
        faults.append(FieldError("config/plugin-cycle", "plugins", cycle[0], message))
        return faults
    for found in order:
        path = paths.get(found.name, (f"plugins[name={found.name}]", {}))[0]
        for earlier in dict.fromkeys((*found.requires, *found.after)):
            if position.get(earlier, -1) > position[found.name]:
                message = f"must come after {earlier}; set pluginOrder so that it does"
                faults.append(FieldError("config/plugin-order", path, found.name, message))
    return faults


def _cycle(edges: Mapping[str, Sequence[str]]) -> list[str]:
    """Return one circle of names, first one repeated at the end; empty if there is none."""
    done: set[str] = set()

    def walk(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return [*trail[trail.index(name) :], name]
        if name in done:
            return []
        for needed in edges.get(name, ()):
            circle = walk(needed, [*trail, name])
            if circle:
                return circle
        done.add(name)
        return []

    for name in edges:
        circle = walk(name, [])
        if circle:
            return circle
    return []
