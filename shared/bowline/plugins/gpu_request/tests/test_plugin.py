"""The plugin in the admission chain: create, update, template, and its settings."""

from typing import Any

import pytest

from bowline.framework.admission import AdmissionChain
from bowline.framework.config import GpuSharingSettings, Settings
from bowline.framework.interface.plugin import AdmissionInfo, PluginConfig
from bowline.plugins.gpu_request import GpuRequest
from bowline.plugins.gpu_request.tests.builders import CLASS, GPU, Json, container, pod


def chain(settings: Settings | None = None) -> AdmissionChain:
    settings = settings or Settings()
    return AdmissionChain([GpuRequest(PluginConfig(), settings)], settings)


def ours(annotations: Json, *containers: Json) -> Json:
    return pod(annotations, *containers, schedulerName="example-scheduler")


def test_a_new_pod_is_validated_and_not_changed() -> None:
    raw = ours({"gpu-fraction": "0.5", "mps": "yes"}, container(limits={GPU: 1}))
    verdict = chain().admit_pod(raw, AdmissionInfo())
    assert [fault.rule.id for fault in verdict.errors] == ["gpu_request/share-and-whole"]
    assert [fault.rule.id for fault in verdict.warnings] == ["gpu_request/mps-spelling"]
    assert verdict.patch == ()


def test_an_update_is_validated_by_its_changes() -> None:
    old = ours({"gpu-fraction": "7"})
    same, new = ours({"gpu-fraction": "7", "note": "x"}), ours({"gpu-fraction": "8"})
    info = AdmissionInfo(operation="UPDATE")
    assert chain().validate_pod(same, old, info).allowed
    [fault] = chain().validate_pod(new, old, info).errors
    assert (fault.rule.id, fault.path) == ("gpu_request/immutable", "metadata.annotations[gpu-fraction]")


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param(Settings(), ["[share-and-claim]"], id="nothing set"),
        pytest.param(Settings(gpu_device_classes=("gpu.example.com",)), ["share-and-dra"],
            id="the class is a GPU"),
        pytest.param(Settings(gpu_sharing=GpuSharingSettings(enabled=False)), ["sharing-disabled",
            "[share-and-claim]"], id="sharing is switched off"),
    ],
)  # fmt: skip
def test_settings(settings: Settings, expected: list[str]) -> None:
    raw = ours({"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2"}, container(limits={CLASS: 1}))
    verdict = chain(settings).admit_pod(raw, AdmissionInfo())
    rules: dict[str, Any] = {fault.rule.id.removeprefix("gpu_request/"): fault for fault in verdict.errors}
    warnings = [f"[{fault.rule.id.removeprefix('gpu_request/')}]" for fault in verdict.warnings]
    assert [*rules, *warnings] == expected
