"""The plugin's own arguments; what several plugins share is ``gpuSharing`` of the configuration."""

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from shared.framework.plugin import PluginConfig


class GpuSharingConfig(PluginConfig):
    """``args`` of gpu_sharing."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)

    scale_adjust_namespace: str = "kai-scale-adjust"
    """Where a scheduler puts pods that stand for GPUs still to come from an autoscaler. As long as one of them is not
    scheduled, no new device is reserved: the device it stands for would be taken. Empty: not looked at."""
    reservation_runtime_class_name: str = ""
    """RuntimeClass of reservation pods; wanted where the default runtime shows no GPU to a container."""
    reservation_resources: dict[str, str] = Field(default_factory=dict)
    """Requests and limits of reservation pods besides the one GPU, such as cpu and memory. Without any, a node that
    is short of memory evicts them first."""
