"""Arguments of device_access."""

from typing import Annotated

from pydantic import Field

from bowline.framework.interface.plugin import PluginConfig


class DeviceAccessConfig(PluginConfig):
    """``args`` of the plugin."""

    gpu_resources: Annotated[tuple[str, ...], Field(alias="gpuResources")] = ()
    """Resources besides nvidia.com/gpu and nvidia.com/mig-* that give a container a GPU, such as the name under which
    a DRA device class is offered as an extended resource. A pod does not show what such a name means."""
