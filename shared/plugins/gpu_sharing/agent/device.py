"""Which GPU this container sees: through NVML, or one made up for clusters without GPUs.

NVML is opened and closed for every reading: a handle kept open would show the devices of the time it was opened, and
hold on to a driver that is to be replaced. Reading fails with a sentence that says what to look at.
"""

import importlib
from collections.abc import Callable
from typing import Any, Protocol

from shared.api.meta import Object
from shared.api.names import NODE_FAKE_GPU


class DeviceError(Exception):
    """There is no telling the device; the message says why and what to look at."""


class Nvml(Protocol):
    """What is used of the NVML bindings. They raise ``NVMLError``, a class of their own."""

    NVMLError: type[Exception]

    def nvmlInit(self) -> None: ...  # noqa: N802 - NVML's own names
    def nvmlShutdown(self) -> None: ...  # noqa: N802
    def nvmlDeviceGetCount(self) -> int: ...  # noqa: N802
    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any: ...  # noqa: N802
    def nvmlDeviceGetUUID(self, handle: Any) -> str | bytes: ...  # noqa: N802


def load_nvml() -> Nvml:
    """Return the NVML bindings. They are in the image, not among what the other processes need."""
    try:
        module: Any = importlib.import_module("pynvml")
    except ImportError as error:
        raise DeviceError(
            "the NVML bindings are not installed; use the agent's image, or install nvidia-ml-py into this one"
        ) from error
    bindings: Nvml = module
    return bindings


def read_device(load: Callable[[], Nvml] = load_nvml) -> str:
    """Return the UUID of the one GPU that is visible here."""
    nvml = load()
    try:
        nvml.nvmlInit()
        try:
            count = nvml.nvmlDeviceGetCount()
            if count != 1:
                raise DeviceError(
                    f"{count} GPUs are visible, there must be exactly 1, the reserved one; see whether the device "
                    "plugin passes devices by NVIDIA_VISIBLE_DEVICES=all or the container is privileged"
                )
            uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(0))
        finally:
            nvml.nvmlShutdown()
    except nvml.NVMLError as error:
        raise DeviceError(
            f"NVML cannot be used: {error}; see that the node's driver works (nvidia-smi) and that the pod's runtime "
            "class shows it (args.reservationRuntimeClassName of plugin gpu_sharing)"
        ) from error
    return uuid.decode() if isinstance(uuid, bytes) else uuid


def fake_device(pod: Object, node: Object) -> str:
    """Return a made-up UUID, the same for the pod's whole life. Raises DeviceError on a node that is not fake."""
    name = node["metadata"]["name"]
    said = (node["metadata"].get("labels") or {}).get(NODE_FAKE_GPU)
    if said != "true":
        raise DeviceError(
            f"node {name} is not labelled {NODE_FAKE_GPU}=true, so its GPUs are real and are not made up; "
            "switch gpuSharing.fakeGPUs off, or label the node"
        )
    return f"GPU-{pod['metadata']['uid']}"
