"""The built-in plugins, in the order in which they run."""

from shared.framework.registry import Builtin
from shared.plugins.default_binder import DefaultBinder
from shared.plugins.device_access import DeviceAccess
from shared.plugins.dynamic_resources import DynamicResources
from shared.plugins.gpu_request import GpuRequest
from shared.plugins.gpu_sharing import GpuSharing
from shared.plugins.hami_core import HamiCore
from shared.plugins.node_fit import NodeFit
from shared.plugins.numa_placement import NumaPlacement
from shared.plugins.nv_fractions import NvFractions
from shared.plugins.runtime_class import RuntimeClass
from shared.plugins.volume_binding import VolumeBinding

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
