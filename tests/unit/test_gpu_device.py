"""Why `make test-gpu` skips, and its verdict on the memory that a driver reserves."""

import pytest

from tests.gpu.device import NVML, Device, missing_part, reserve_verdict


@pytest.mark.parametrize(
    ("files", "absent_library", "expected"),
    [
        pytest.param([], "", "no GPU: there is no /dev/nvidia0", id="no-device"),
        pytest.param(["/dev/nvidia0", "/dev/nvidia1"], "",
                     "the test is for a machine with one GPU, this one has /dev/nvidia0, /dev/nvidia1", id="two"),
        pytest.param(["/dev/nvidia0"], NVML, f"no driver: {NVML} cannot be loaded (no such file)", id="no-driver"),
        pytest.param(["/dev/nvidia0"], "", "", id="complete"),
    ],
)  # fmt: skip
def test_the_reason_why_no_device_is_tested(files: list[str], absent_library: str, expected: str) -> None:
    def load(library: str) -> None:
        if library == absent_library:
            raise OSError("no such file")

    assert missing_part(files, load) == expected


@pytest.mark.parametrize(
    ("reserved", "fits", "end"),
    [
        pytest.param(1023, True, "is enough", id="less"),
        pytest.param(1024, True, "is enough", id="equal"),
        pytest.param(1025, False, "is too little: raise it", id="more"),
    ],
)
def test_what_the_driver_reserves_beside_the_setting(reserved: int, fits: bool, end: str) -> None:
    verdict = reserve_verdict(Device("GPU-1", "model", "580.1", 81920, reserved), 1024)
    assert verdict == (
        fits, f"the driver keeps {reserved} of 81920 MiB; gpuSharing.reservedMemory, 1024 MiB, {end}"
    )  # fmt: skip
