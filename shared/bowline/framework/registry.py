"""Builds plugins from the configuration: which are enabled, in what order, with which arguments.

Built-ins are given as one tuple; others are found by the entry point group ``bowline.plugins``, only when the
configuration names them. All errors, of the configuration's author or of a plugin's, are collected and reported
together. No plugin is returned unless there are none.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from pydantic import ValidationError

from bowline.api.field_error import FieldError
from bowline.api.rule import DenialCause, Rule
from bowline.api.schema import schema_errors
from bowline.framework.config import ConfigurationError, PluginEntry, Settings
from bowline.framework.interface.access import Access
from bowline.framework.interface.plugin import Plugin, PluginConfig, hooks_of
from bowline.framework.plugin_class import ACCESS, PLUGIN, class_errors
from bowline.framework.plugin_order import PLUGIN_ORDER, PluginClass, dependency_errors, sorted_stably

_NAME: Final = Rule("plugin/name", "several installed plugins have the same name", cause=DenialCause.DUPLICATE)
RULES: Final = (_NAME,)

ENTRY_POINT_GROUP = "bowline.plugins"
# The last resort for binding; external plugins precede it.
LAST_PLUGIN = "default_binder"
_NOT_GRANTED = (
    "the release does not grant what the plugin declares: its rights are missing, or the API server does not call "
    "its admission; install the chart with what `bowline plugin access --config FILE` prints"
)


Discover = Callable[[], Iterable[EntryPoint]]


def installed_plugins() -> Iterable[EntryPoint]:
    """Return the plugins of all installed distributions, not loaded."""
    return entry_points(group=ENTRY_POINT_GROUP)


@dataclass(frozen=True, slots=True)
class Builtin:
    """A plugin that ships with Bowline. ``setting``: besides its entry, what enables it."""

    plugin: PluginClass
    is_enabled: bool = True
    setting: Callable[[Settings], object] = lambda _: False


@dataclass(slots=True)
class _Selection:
    """Intermediate result: the named classes, their configuration entries, the enabled classes, and the errors so
    far.
    """

    errors: list[FieldError] = field(default_factory=list)
    classes: dict[str, PluginClass] = field(default_factory=dict)
    entries: dict[str, tuple[str, PluginEntry]] = field(default_factory=dict)
    enabled_classes: dict[str, PluginClass] = field(default_factory=dict)

    def path(self, name: str) -> str:
        """Return the path of a plugin's configuration entry, or of the one it would have."""
        return self.entries[name][0] if name in self.entries else f"plugins[name={name}]"

    def error(self, name: str, message: str, rule: Rule = PLUGIN) -> None:
        """Add an error of a plugin as a whole."""
        self.errors.append(FieldError(rule, self.path(name), name, message))


class Registry:
    """Builds the plugins of a configuration."""

    def __init__(self, builtins: Sequence[Builtin], discover: Discover = installed_plugins) -> None:
        names = [builtin.plugin.name for builtin in builtins]
        twice = {name for name in names if names.count(name) > 1}
        if twice:
            raise ValueError(f"plugin name registered twice: {', '.join(sorted(twice))}")
        self._builtins = {builtin.plugin.name: builtin for builtin in builtins}
        self._discover = discover

    def build(self, settings: Settings) -> tuple[Plugin, ...]:
        """Return the enabled plugins in order. Raises ConfigurationError with all errors."""
        selection = self._select(settings)
        order = self._order(settings, selection)
        selection.errors += dependency_errors(order, {plugin.name: selection.path(plugin.name) for plugin in order})
        args = {
            name: self._args(name, selection)
            for name in selection.classes
            if name in selection.entries.keys() | selection.enabled_classes
        }
        plugins = []
        for plugin_class in order:
            try:
                plugin_args = args[plugin_class.name]
                if plugin_args is not None:  # else invalid, and reported
                    plugins.append(plugin_class(plugin_args, settings))
            except BaseException as error:  # noqa: BLE001 - foreign code; reported, and the process does not start
                selection.error(plugin_class.name, f"cannot be created: {type(error).__name__}: {error}")
        if selection.errors:
            raise ConfigurationError(selection.errors)
        return tuple(plugins)

    def classes(self, names: Iterable[str]) -> tuple[PluginClass, ...]:
        """Return the classes of the plugins of these names. Raises ConfigurationError with all errors."""
        selection = self._select(Settings(plugins=tuple(PluginEntry(name=name) for name in names)))
        if selection.errors:
            raise ConfigurationError(selection.errors)
        return tuple(selection.classes[name] for name in names)

    # --- which plugins ---

    def _select(self, settings: Settings) -> _Selection:
        selection = _Selection()
        for name, builtin in self._builtins.items():
            selection.classes[name] = builtin.plugin
            if builtin.is_enabled or builtin.setting(settings):
                selection.enabled_classes[name] = builtin.plugin
        points_by_name: dict[str, list[EntryPoint]] = {}
        for point in self._discover():
            points_by_name.setdefault(point.name, []).append(point)
        for index, entry in enumerate(settings.plugins):
            path = f"plugins[{index}]"
            if entry.name in selection.entries:
                first = selection.entries[entry.name][0]
                error = FieldError(PLUGIN, f"{path}.name", entry.name, f"is listed twice, first at {first}")
                selection.errors.append(error)
                continue
            selection.entries[entry.name] = (path, entry)
            if entry.name not in self._builtins:
                plugin_class = self._load(entry.name, points_by_name, selection)
                if plugin_class is None:
                    continue
                selection.classes[entry.name] = plugin_class
            if entry.enabled:
                selection.enabled_classes[entry.name] = selection.classes[entry.name]
            else:
                selection.enabled_classes.pop(entry.name, None)
        granted = settings.granted_plugins
        for name, plugin_class in selection.enabled_classes.items():
            is_granted = granted is None or name in granted or name in self._builtins
            if not is_granted and (plugin_class.access != Access() or hooks_of(plugin_class)):
                selection.error(name, _NOT_GRANTED, ACCESS)
        for name in sorted(points_by_name.keys() & self._builtins.keys()):
            message = f"is the name of a built-in plugin and of {_origins(points_by_name[name])}; uninstall that"
            selection.error(name, message, _NAME)
        return selection

    def _load(
        self, name: str, points_by_name: Mapping[str, Sequence[EntryPoint]], selection: _Selection
    ) -> PluginClass | None:
        path = f"{selection.path(name)}.name"
        candidates = points_by_name.get(name, ())
        if len(candidates) > 1:
            message = f"is the name of several installed plugins: {_origins(candidates)}; uninstall all but one"
            selection.errors.append(FieldError(_NAME, path, name, message))
            return None
        if not candidates:
            names = ", ".join(sorted({*self._builtins, *points_by_name}))
            message = f"is no plugin; known: {names}. Install its distribution or correct the name"
            selection.errors.append(FieldError(PLUGIN, path, name, message))
            return None
        try:
            plugin_class: PluginClass = candidates[0].load()
        except BaseException as error:  # noqa: BLE001 - foreign code; reported, and the process does not start
            selection.errors.append(FieldError(PLUGIN, path, name, f"cannot be loaded: {error!r}"))
            return None
        errors = class_errors(plugin_class, name, path)
        selection.errors += errors
        return None if errors else plugin_class

    # --- arguments and order ---

    def _args(self, name: str, selection: _Selection) -> PluginConfig | None:
        """Return the validated arguments; None if they are invalid, which is reported.

        A disabled plugin's arguments are validated too, but may be incomplete.
        """
        entry = selection.entries.get(name)
        try:
            return selection.classes[name].config_model.model_validate(entry[1].args if entry is not None else {})
        except ValidationError as error:
            must_be_complete = name in selection.enabled_classes
            details = [detail for detail in error.errors() if must_be_complete or detail["type"] != "missing"]
            selection.errors += schema_errors(_arguments_rule(name), f"{selection.path(name)}.args", details)
            return None

    def _order(self, settings: Settings, selection: _Selection) -> list[PluginClass]:
        classes = selection.enabled_classes
        outsiders = [entry.name for entry in settings.plugins if entry.name not in self._builtins]
        names = [name for name in self._builtins if name != LAST_PLUGIN] + outsiders + [LAST_PLUGIN]
        default = sorted_stably([classes[name] for name in dict.fromkeys(names) if name in classes])
        if not settings.plugin_order:
            return default
        order = list(settings.plugin_order)
        for name in dict.fromkeys(order):
            if name not in classes or order.count(name) > 1:
                message = "is not enabled" if name not in classes else "is listed twice"
                selection.errors.append(FieldError(PLUGIN_ORDER, "pluginOrder", name, message))
        missing = [plugin_class.name for plugin_class in default if plugin_class.name not in order]
        if missing:
            message = f"must name every enabled plugin; missing: {', '.join(missing)}"
            selection.errors.append(FieldError(PLUGIN_ORDER, "pluginOrder", ", ".join(order), message))
            return default
        return [classes[name] for name in dict.fromkeys(order) if name in classes]


def _origins(candidates: Iterable[EntryPoint]) -> str:
    return ", ".join(sorted(f"{point.dist.name if point.dist else '?'} ({point.value})" for point in candidates))


def _arguments_rule(plugin: str) -> Rule:
    return Rule(
        f"{plugin}/args", f"the arguments of plugin {plugin} in the configuration are not as its class declares"
    )
