"""The physical device of this machine as NVML reports it, and why there is none to test with."""

import ctypes
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NVML = "libnvidia-ml.so.1"


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU and its driver. Memory in MiB, ``reserved`` being what driver and firmware keep of ``total``."""

    uuid: str
    model: str
    driver: str
    total: int
    reserved: int


def device_files() -> list[str]:
    """Return the files of this machine's devices."""
    return sorted(map(str, Path("/dev").glob("nvidia[0-9]*")))


def missing_part(files: Sequence[str]) -> str:
    """Return why no device can be tested; empty if one can be."""
    if not files:
        return "no GPU: there is no /dev/nvidia0"
    if len(files) > 1:
        return f"the test is for a machine with one GPU, this one has {', '.join(files)}"
    for library in ("libcuda.so.1", NVML):
        try:
            ctypes.CDLL(library)
        except OSError as error:
            return f"no driver: {library} cannot be loaded ({error})"
    return ""


def read_device() -> Device:
    """Return the first device. Raises pynvml's NVMLError."""
    nvml: Any = importlib.import_module("pynvml")
    nvml.nvmlInit()
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(0)
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        return Device(
            nvml.nvmlDeviceGetUUID(handle),
            nvml.nvmlDeviceGetName(handle),
            nvml.nvmlSystemGetDriverVersion(),
            memory.total >> 20,
            -(-memory.reserved >> 20),
        )
    finally:
        nvml.nvmlShutdown()


def nvml_file() -> str:
    """Return the file that is loaded as NVML; empty if there is none."""
    try:
        ctypes.CDLL(NVML)
    except OSError:
        return ""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next(line.split()[-1] for line in lines if "libnvidia-ml.so" in line)


def reserve_verdict(device: Device, setting: int) -> tuple[bool, str]:
    """Return whether shares that add up to a device fit on it, and the sentence. ``setting``: in MiB."""
    fits = device.reserved <= setting
    kept = f"the driver keeps {device.reserved} of {device.total} MiB"
    return (
        fits,
        f"{kept}; gpuSharing.reservedMemory, {setting} MiB, is {'enough' if fits else 'too little: raise it'}",
    )
