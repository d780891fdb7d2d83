"""The extension points of the reconciler, and which plugins have each. Pure."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.interface.plugin import Plugin, overriding

# In the order of an attempt.
POINTS: tuple[Callable[..., Any], ...] = (
    BuiltinBindingPlugin.supported_allocations,
    BindingPlugin.applies,
    Plugin.has_side_effects,
    BindingPlugin.pre_bind,
    BuiltinBindingPlugin.binding_annotations,
    BindingPlugin.bind,
    BindingPlugin.post_bind,
    BuiltinBindingPlugin.on_failure,
    BindingPlugin.rollback,
    BindingPlugin.release,
    BindingPlugin.forget,
)
BUILTIN_POINTS = tuple(point for point in POINTS if point.__name__ in vars(BuiltinBindingPlugin))


def at_point(plugins: Sequence[Plugin], point: Callable[..., Any]) -> tuple[BindingPlugin, ...]:
    """Return the plugins that override an extension point, in order; a rollback that is not overridden is release."""
    methods = (point, BindingPlugin.release) if point is BindingPlugin.rollback else (point,)
    binding_plugins = [plugin for plugin in plugins if isinstance(plugin, BindingPlugin)]
    return tuple(plugin for plugin in binding_plugins if any(overriding([plugin], method) for method in methods))


def order_by_point(plugins: Sequence[Plugin]) -> Mapping[str, tuple[str, ...]]:
    """Return the plugins of each extension point, in calling order; for logs and metrics."""
    table = {point.__name__: tuple(plugin.name for plugin in at_point(plugins, point)) for point in POINTS}
    return {**table, "rollback": table["rollback"][::-1], "release": table["release"][::-1]}
