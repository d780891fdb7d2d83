"""The built-in plugins, in the order in which they run."""

from bowline.shared.framework.config import Settings
from bowline.shared.framework.gates import GATES
from bowline.shared.framework.plugin import Plugin
from bowline.shared.framework.registry import Builtin, Registry
from bowline.shared.plugins.default_binder import DefaultBinder
from bowline.shared.plugins.device_access import DeviceAccess
from bowline.shared.plugins.dynamic_resources.plugin import DynamicResources
from bowline.shared.plugins.gpu_request import GpuRequest
from bowline.shared.plugins.gpu_sharing.plugin import GpuSharing
from bowline.shared.plugins.hami_core import HamiCore
from bowline.shared.plugins.node_fit import NodeFit
from bowline.shared.plugins.numa_placement import NumaPlacement
from bowline.shared.plugins.nv_fractions import NvFractions
from bowline.shared.plugins.runtime_class import RuntimeClass
from bowline.shared.plugins.volume_binding import VolumeBinding

BUILTINS: tuple[Builtin, ...] = (
    Builtin(GpuRequest),
    Builtin(NvFractions, is_enabled=False),
    Builtin(GpuSharing),
    Builtin(DeviceAccess, is_enabled=False),
    Builtin(RuntimeClass),
    Builtin(HamiCore, is_enabled=False),
    Builtin(VolumeBinding),
    Builtin(DynamicResources),
    Builtin(NumaPlacement),
    Builtin(NodeFit, is_enabled=False),
    Builtin(DefaultBinder),
)


def build_plugins(settings: Settings) -> tuple[Plugin, ...]:
    """Return the enabled plugins, built-in and installed, in order. Raises ConfigurationError with all errors."""
    return Registry(BUILTINS, GATES).build(settings)
