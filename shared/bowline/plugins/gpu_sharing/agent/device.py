"""The GPU that is visible to this container, read through NVML.

NVML is opened and closed for every read: an open handle would show the devices as of its opening, and block the
replacement of the driver. The error message of a failed read names what to check.
"""

import importlib
from collections.abc import Callable
from typing import Any, Protocol


class DeviceError(Exception):
    """The device cannot be determined; the message states the cause and what to check."""


class Nvml(Protocol):
    """The subset of the NVML bindings in use. They raise ``NVMLError``, a class of their own."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: N802 - NVML's own names
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...  # noqa: N802
    def nvmlDeviceGetUUID(self, handle: Any) -> str | bytes: ...  # noqa: N802


def load_nvml() -> Nvml:
    """Return the NVML bindings. They are in the image, but not among the project's dependencies."""
    try:
        module: Any = importlib.import_module("pynvml")
    except ImportError as error:
        raise DeviceError(
            "the NVML bindings are not installed; use the agent's image, or install nvidia-ml-py into this one"
        ) from error
    bindings: Nvml = module
    return bindings


def read_device(load: Callable[[], Nvml] = load_nvml) -> str:
    """Return the UUID of the one visible GPU. Raises DeviceError unless exactly one is visible."""
    nvml = load()
    try:
        nvml.nvmlInit()
        try:
            count = nvml.nvmlDeviceGetCount()
            if count != 1:
                raise DeviceError(
                    f"{count} GPUs are visible, there must be exactly 1, the reserved one; check whether the device "
                    "plugin passes devices by NVIDIA_VISIBLE_DEVICES=all or the container is privileged"
                )
            uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(0))
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise DeviceError(
            f"NVML cannot be used: {error}; check the node's driver (nvidia-smi) and whether the pod's runtime "
            "class exposes it (args.reservationRuntimeClassName of plugin gpu_sharing)"
        ) from error
    return uuid.decode() if isinstance(uuid, bytes) else uuid
