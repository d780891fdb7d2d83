"""Which pods get the runtime class."""

from typing import Any

import pytest

from bowline.api.gpu_operator import GpuRuntime, OperatorMode
from bowline.framework.admission import AdmissionChain
from bowline.framework.config import GpuSharingSettings, Settings
from bowline.framework.interface.plugin import AdmissionInfo, PluginConfig
from bowline.plugins.runtime_class import RuntimeClass


def chain(**sharing: Any) -> AdmissionChain:
    settings = Settings(gpu_sharing=GpuSharingSettings(**sharing))
    return AdmissionChain([RuntimeClass(PluginConfig(), settings)], settings)


def pod(annotations: dict[str, str], **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    return {
        "metadata": {"name": "p", "annotations": annotations},
        "spec": {
            "schedulerName": "example-scheduler",
            "containers": [container if not annotations else {"name": "main"}],
            **spec,
        },
    }


HALF = {"gpu-fraction": "0.5"}
OLD = OperatorMode.OLD_NRI.value


@pytest.mark.parametrize(
    ("raw", "sharing", "name"),
    [
        pytest.param(pod(HALF), {}, "nvidia", id="a share"),
        pytest.param(pod(HALF, runtimeClassName=""), {}, "nvidia", id="an empty name is none"),
        pytest.param(pod(HALF, runtimeClassName="kata"), {}, "kata", id="the user's own is unchanged"),
        pytest.param(pod({}), {}, None, id="a whole GPU is the kubelet's"),
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


def info(mode: str, *classes: str, is_final: bool = False) -> AdmissionInfo:
    runtime = GpuRuntime(OperatorMode(mode), frozenset(classes))
    return AdmissionInfo(gpu_runtime=runtime, is_validating_webhook=is_final)


@pytest.mark.parametrize(
    ("mode", "classes", "sharing", "rule", "name"),
    [
        pytest.param("cdi", ["nvidia"], {}, "", "nvidia", id="the class exists"),
        pytest.param("nri", [], {}, "", None, id="NRI mode"),
        pytest.param(OLD, [], {}, "runtime_class/absent", None, id="an old NRI plugin"),
        pytest.param(OLD, [], {"nv_fractions": True}, "", None, id="an old NRI plugin with GPU fractioning"),
        pytest.param("cdi", ["other"], {}, "runtime_class/absent", None, id="another class"),
        pytest.param(OLD, [], {"enabled": False}, "", None, id="sharing is off"),
        pytest.param("cdi", [], {"runtime_class_name": ""}, "", None, id="no class is configured"),
    ],
)
def test_a_share_is_denied_with_the_reason_if_its_class_does_not_exist(
    mode: str, classes: list[str], sharing: dict[str, Any], rule: str, name: str | None
) -> None:
    raw = pod(HALF)
    verdict = chain(**sharing).admit_pod(raw, info(mode, *classes))
    assert [error.rule.id for error in verdict.errors] == ([rule] if rule else [])
    assert raw["spec"].get("runtimeClassName") == name
    final = chain(**sharing).validate_pod(raw, None, info(mode, *classes, is_final=True))
    assert [error.rule.id for error in final.errors] == ([rule] if rule else [])
    for error in verdict.errors:
        assert error.path == "spec.runtimeClassName"
        assert "gpuSharing.runtimeClassName" in error.message
        assert "; " in error.message, "a remedy"


def test_a_pod_that_names_a_class_is_the_api_servers_to_deny() -> None:
    assert chain().admit_pod(pod(HALF, runtimeClassName="nvidia"), info(OLD)).allowed


def test_an_empty_setting_beside_an_old_nri_plugin_is_a_warning() -> None:
    verdict = chain(runtime_class_name="").admit_pod(pod(HALF), info(OLD))
    assert verdict.allowed
    assert [warning.rule.id for warning in verdict.warnings] == ["runtime_class/operator-mode"]
