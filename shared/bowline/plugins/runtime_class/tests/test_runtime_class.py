"""Which pods get the runtime class."""

from typing import Any

import pytest

from bowline.framework.admission import AdmissionChain
from bowline.framework.config import GpuSharingSettings, Settings
from bowline.framework.plugin import AdmissionInfo, PluginConfig
from bowline.plugins.runtime_class import RuntimeClass


def chain(**sharing: Any) -> AdmissionChain:
    settings = Settings(gpu_sharing=GpuSharingSettings(**sharing))
    return AdmissionChain([RuntimeClass(PluginConfig(), settings)], settings)


def pod(annotations: dict[str, str], **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {
            "schedulerName": "bowline",
            "containers": [container if not annotations else {"name": "main"}],
            **spec,
        },
    }


HALF = {"gpu-fraction": "0.5"}


@pytest.mark.parametrize(
    ("raw", "sharing", "name"),
    [
        pytest.param(pod(HALF), {}, "nvidia", id="a share"),
        pytest.param(pod({"gpu-memory": "1024"}), {}, "nvidia", id="a share by memory"),
        pytest.param(pod(HALF, runtimeClassName=""), {}, "nvidia", id="an empty name is none"),
        pytest.param(pod(HALF, runtimeClassName="kata"), {}, "kata", id="the user's own is unchanged"),
        pytest.param(pod({}), {}, None, id="a whole GPU is the kubelet's"),
        pytest.param(pod({"mps": "true"}), {}, None, id="no share"),
        pytest.param(pod(HALF), {"runtime_class_name": "other"}, "other", id="the configured class"),
        pytest.param(pod(HALF), {"runtime_class_name": ""}, None, id="switched off by an empty name"),
        pytest.param(pod(HALF), {"enabled": False}, None, id="sharing is switched off"),
    ],
)
def test_runtime_class_of_a_new_pod(raw: dict[str, Any], sharing: dict[str, Any], name: str | None) -> None:
    verdict = chain(**sharing).admit_pod(raw, AdmissionInfo())
    assert verdict.allowed
    assert raw["spec"].get("runtimeClassName") == name
    assert chain(**sharing).admit_pod(raw, AdmissionInfo()).patch == ()
    assert chain(**sharing).validate_pod(raw, None, AdmissionInfo(is_validating_webhook=True)).allowed


def test_only_the_last_hook_requires_it() -> None:
    assert chain().validate_pod(pod(HALF), None, AdmissionInfo()).allowed
    (fault,) = chain().validate_pod(pod(HALF), None, AdmissionInfo(is_validating_webhook=True)).errors
    assert (fault.rule.id, fault.path) == ("runtime_class/missing", "spec.runtimeClassName")
    assert "sets nvidia" in fault.message
    assert (
        chain()
        .validate_pod(pod(HALF), pod(HALF), AdmissionInfo(operation="UPDATE", is_validating_webhook=True))
        .allowed
    )
