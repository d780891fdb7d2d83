"""The annotations that built-in plugins read of pods, and that nobody reads while their plugin is off. Data.

They are here, rather than beside the plugin's class, so that ``bowline lint`` knows those of a plugin that is off
without importing it.
"""

from collections.abc import Iterable
from typing import Final

from bowline.api import names
from bowline.framework.interface.plugin import AnnotationReads, Plugin

GPU_SHARING: Final = AnnotationReads(
    "gpu_sharing",
    "no component gives the pod a share; the chart's value config.plugins.gpu_sharing.enabled: true switches it on; "
    "or request whole GPUs",
    keys=names.SHARE_ANNOTATIONS,
)
NV_FRACTIONS: Final = AnnotationReads(
    "nv_fractions",
    "the pod gets no device and no limit by it; set gpuSharing.nvFractions in Bowline's configuration, or request "
    f"the share with {names.GPU_FRACTION} or {names.GPU_MEMORY}",
    keys=(names.GPU_MEMORY_LIMIT, names.GPU_FRACTION_LIMIT),
    affixes=(
        (names.NV_CONTAINER, names.NV_MEMORY_REQUEST),
        (names.NV_CONTAINER, names.NV_MEMORY_LIMIT),
        (names.NV_CONTAINER, names.NV_COMPUTE_MODE),
        (names.KAI_CONTAINER, names.KAI_MEMORY_PORTION_LIMIT),
    ),
)
BUILTIN_READS: Final = (GPU_SHARING, NV_FRACTIONS)


def unread_annotations(plugins: Iterable[Plugin]) -> tuple[AnnotationReads, ...]:
    """Return the annotations that no plugin reads, because the built-in plugin that does is not among ``plugins``."""
    enabled = {plugin.name for plugin in plugins}
    return tuple(reads for reads in BUILTIN_READS if reads.plugin not in enabled)
