"""Order of the plugins: the configured one, or the default sorted by the plugins' dependencies. Pure.

``requires`` and ``after`` name plugins that precede this one, ``before`` those that follow it. The default order is
stable: plugins keep their position unless a dependency moves them.
"""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Final

from bowline.api.field_error import FieldError
from bowline.api.rule import Rule
from bowline.framework.interface.plugin import Plugin

PLUGIN_ORDER: Final = Rule(
    "config/plugin-order",
    "`pluginOrder` does not name each enabled plugin once, or in an order that one of them excludes",
)
_REQUIRES: Final = Rule("config/plugin-requires", "a plugin requires another one that is not enabled")
_CYCLE: Final = Rule("config/plugin-cycle", "plugins depend on each other in a circle")
RULES: Final = (PLUGIN_ORDER, _REQUIRES, _CYCLE)

PluginClass = type[Plugin]


def predecessors(plugins: Sequence[PluginClass]) -> dict[str, tuple[str, ...]]:
    """Return for each plugin the enabled ones that must precede it, without duplicates."""
    names = {plugin.name for plugin in plugins}
    return {
        plugin.name: tuple(
            dict.fromkeys(
                [
                    *(name for name in (*plugin.requires, *plugin.after) if name in names),
                    *(predecessor.name for predecessor in plugins if plugin.name in predecessor.before),
                ]
            )
        )
        for plugin in plugins
    }


def sorted_stably(plugins: Sequence[PluginClass]) -> list[PluginClass]:
    """Return the plugins, each after its predecessors, otherwise in the given order. With a cycle: as given."""
    earlier = predecessors(plugins)
    if _cycle(earlier):
        return list(plugins)
    order: list[PluginClass] = []
    names: set[str] = set()
    waiting = list(plugins)
    while waiting:
        ready = next(plugin for plugin in waiting if names.issuperset(earlier[plugin.name]))
        waiting.remove(ready)
        order.append(ready)
        names.add(ready.name)
    return order


def dependency_errors(order: Sequence[PluginClass], paths: Mapping[str, str]) -> list[FieldError]:
    """Validate the ordered plugins: their requirements are enabled and precede them, and there is no cycle.

    ``paths`` are the plugins' paths in the configuration.
    """
    position = {plugin.name: index for index, plugin in enumerate(order)}
    errors = []
    for plugin in order:
        for requirement in dict.fromkeys(plugin.requires):
            if requirement not in position:
                message = (
                    f"requires plugin {requirement}, which is not enabled; enable it or switch {plugin.name} off"
                )
                errors.append(FieldError(_REQUIRES, paths[plugin.name], plugin.name, message))
    earlier = predecessors(order)
    cycle = _cycle(earlier)
    if cycle:
        message = f"plugins depend on each other in a circle: {' -> '.join(cycle)}"
        return [*errors, FieldError(_CYCLE, "plugins", cycle[0], message)]
    for plugin in order:
        for name in earlier[plugin.name]:
            if position[name] > position[plugin.name]:
                message = f"must follow {name}; change pluginOrder so that it does"
                errors.append(FieldError(PLUGIN_ORDER, paths[plugin.name], plugin.name, message))
    return errors


def _cycle(edges: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a cycle of names, each followed by one it must follow, the first one twice; empty if there is none."""
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]  # each before one that follows it
        return cycle[::-1]
    return []
