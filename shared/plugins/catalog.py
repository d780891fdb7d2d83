"""The built-in plugins, in the order in which they run."""

from shared.framework.registry import Builtin
from shared.plugins.default_binder import DefaultBinder
from shared.plugins.gpu_request import GpuRequest

BUILTINS: tuple[Builtin, ...] = (
    Builtin(GpuRequest),
    Builtin(DefaultBinder),
)
