"""The agent's readings, its report and its command line. It runs beside a real API server elsewhere."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from bowline.api import names
from bowline.plugins.gpu_sharing.agent.app import parse_options, report_of
from bowline.plugins.gpu_sharing.agent.device import DeviceError, Nvml, load_nvml, read_device


class DriverError(Exception):
    """A double of NVML's own error."""


@dataclass
class Driver:
    """A driver with some GPUs, in the form of the NVML bindings."""

    uuids: list[Any]
    init_fails: bool = False
    calls: list[str] = field(default_factory=list)
    NVMLError: type[Exception] = DriverError

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init_fails:
            raise DriverError("NVML Shared Library Not Found")
        self.calls.append("init")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.calls.append("shutdown")

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.uuids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:  # noqa: N802
        return self.uuids[index]

    def nvmlDeviceGetUUID(self, handle: Any) -> Any:  # noqa: N802
        if handle == "lost":
            raise DriverError("GPU is lost")
        return handle


def read(driver: Driver) -> str:
    bindings: Nvml = driver
    return read_device(lambda: bindings)


@pytest.mark.parametrize(
    "uuid", [pytest.param("GPU-1", id="as text"), pytest.param(b"GPU-1", id="as bytes, of older bindings")]
)
def test_the_one_device_is_read_and_the_driver_released(uuid: Any) -> None:
    driver = Driver([uuid])
    assert read(driver) == "GPU-1"
    assert driver.calls == ["init", "shutdown"]


@pytest.mark.parametrize(
    ("driver", "reason", "let_go"),
    [
        pytest.param(Driver([]), "0 GPUs are visible, there must be exactly 1", True, id="no device"),
        pytest.param(Driver(["a", "b"]), "2 GPUs are visible", True, id="every device of the node"),
        pytest.param(Driver(["a"], init_fails=True), "Library Not Found; check the", False, id="no driver"),
        pytest.param(Driver(["lost"]), "GPU is lost", True, id="the device fails"),
    ],
)
def test_a_device_that_cannot_be_identified(driver: Driver, reason: str, let_go: bool) -> None:
    with pytest.raises(DeviceError, match=reason):
        read(driver)
    assert ("shutdown" in driver.calls) is let_go


def test_without_the_bindings_the_error_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", None)  # as if it could not be imported
    with pytest.raises(DeviceError, match="install nvidia-ml-py"):
        load_nvml()


@pytest.mark.parametrize(
    ("annotated", "is_written"),
    [
        pytest.param(None, True, id="no report"),
        pytest.param("GPU-1", False, id="the report is there"),
        pytest.param("GPU-wrong", True, id="another client has written another device"),
    ],
)
def test_the_annotation_names_the_device_that_was_read(annotated: str | None, is_written: bool) -> None:
    pod = {"metadata": {"uid": "u", "annotations": {names.RESERVED_DEVICE: annotated} if annotated else None}}
    patch = {"metadata": {"uid": "u", "annotations": {names.RESERVED_DEVICE: "GPU-1"}}}
    assert report_of(pod, "GPU-1") == (patch if is_written else None)


ENVIRONMENT = {"POD_NAMESPACE": "res", "POD_NAME": "r"}


@pytest.mark.parametrize(
    ("arguments", "environment", "reason"),
    [
        pytest.param([], {}, "POD_NAMESPACE, POD_NAME must be set", id="outside a pod"),
        pytest.param(["--listen=x"], ENVIRONMENT, "must be HOST:PORT", id="an address that is none"),
    ],
)
def test_a_command_line_that_is_not_complete(
    arguments: list[str], environment: dict[str, str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_info:
        parse_options(arguments, environment)
    assert exit_info.value.code == 2
    assert reason in capsys.readouterr().err
