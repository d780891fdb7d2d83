"""The plugin's own arguments; what several plugins share is ``gpuSharing`` of the configuration."""

from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from shared.api.quantity import parse_quantity
from shared.framework.plugin import PluginConfig


def _quantity(text: str) -> str:
    try:
        wrong = parse_quantity(text) < 0
    except ValueError:
        wrong = True
    if wrong:
        raise ValueError("must be a quantity of 0 or more, such as 100m, 2 or 128Mi")
    return text


class GpuSharingConfig(PluginConfig):
    """``args`` of gpu_sharing."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)

    scale_adjust_namespace: str = "kai-scale-adjust"
    """Where a scheduler puts pods that stand for GPUs still to come from an autoscaler. As long as one of them is not
    scheduled, no new device is reserved: the device it stands for would be taken. Empty: not looked at."""
    reservation_runtime_class_name: str = ""
    """RuntimeClass of reservation pods; wanted where the default runtime shows no GPU to a container."""
    reservation_resources: dict[str, Annotated[str, AfterValidator(_quantity)]] = Field(default_factory=dict)
    """Requests and limits of reservation pods besides the one GPU, such as cpu and memory. Without any, a node that
    is short of memory evicts them first."""
