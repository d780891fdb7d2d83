"""Limits a plugin's writes to those that its own class declares: a policy does not know which plugin sends one."""

from functools import partial

from bowline.framework.interface.access import is_declared
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.interface.plugin import Plugin
from bowline.kube.calls import Call
from bowline.kube.errors import UndeclaredWriteError
from bowline.kube.permits import Permit


def permit_of(plugin: Plugin) -> Permit | None:
    """Return the limit of the plugin's writes; None for a built-in one, and where no policy limits the account."""
    if not isinstance(plugin, BindingPlugin) or isinstance(plugin, BuiltinBindingPlugin):
        return None
    return partial(_require_declared, plugin) if plugin.settings.granted_plugins is not None else None


def _require_declared(plugin: BindingPlugin, call: Call) -> None:
    (namespace, name), arguments = call.key, plugin.args.model_dump()
    if not is_declared(plugin.access, arguments, call.verb, call.resource.group, call.label, namespace, name):
        raise UndeclaredWriteError(
            f"plugin {plugin.name} may not {call.write}: its `access` does not declare it; add a rule, and install "
            "the chart with what `bowline plugin access` prints"
        )
