"""The built-in plugins, in the order in which they run, and what the others need of the cluster."""

from collections.abc import Sequence
from typing import Any

from bowline.framework.config import Settings
from bowline.framework.interface.plugin import Plugin, access_value
from bowline.framework.registry import Builtin, Registry
from bowline.plugins.checks.plugin import Checks
from bowline.plugins.default_binder import DefaultBinder
from bowline.plugins.device_access import DeviceAccess
from bowline.plugins.dynamic_resources.plugin import DynamicResources
from bowline.plugins.gpu_request import GpuRequest
from bowline.plugins.gpu_sharing.plugin import GpuSharing
from bowline.plugins.hami_core import HamiCore
from bowline.plugins.node_fit import NodeFit
from bowline.plugins.numa_placement import NumaPlacement
from bowline.plugins.nv_fractions import NvFractions
from bowline.plugins.runtime_class import RuntimeClass
from bowline.plugins.volume_binding import VolumeBinding

BUILTINS: tuple[Builtin, ...] = (
    Builtin(GpuRequest),
    Builtin(NvFractions, is_enabled=False, setting=lambda settings: settings.nv_fractions),
    Builtin(GpuSharing),
    Builtin(DeviceAccess, is_enabled=False),
    Builtin(RuntimeClass),
    Builtin(HamiCore, is_enabled=False),
    Builtin(VolumeBinding),
    Builtin(DynamicResources),
    Builtin(NumaPlacement),
    Builtin(NodeFit, is_enabled=False),
    Builtin(Checks, is_enabled=False),
    Builtin(DefaultBinder),
)


def build_plugins(settings: Settings) -> tuple[Plugin, ...]:
    """Return the enabled plugins, built-in and installed, in order. Raises ConfigurationError with all errors."""
    return Registry(BUILTINS).build(settings)


def plugin_access(plugins: Sequence[Plugin]) -> list[dict[str, Any]]:
    """Return the chart's value ``pluginAccess`` for those of the plugins that are not built in."""
    builtins = {builtin.plugin for builtin in BUILTINS}
    return [
        access_value(type(plugin), plugin.args.model_dump()) for plugin in plugins if type(plugin) not in builtins
    ]
