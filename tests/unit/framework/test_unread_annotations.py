"""Annotations without effect, because their plugin is off."""

from typing import Any

import pytest

from bowline.framework.admission import AdmissionChain
from bowline.framework.config import GpuSharingSettings, PluginEntry, Settings
from bowline.framework.interface.plugin import AdmissionInfo
from bowline.framework.registry import Registry
from bowline.plugins.catalog import BUILTINS
from bowline.plugins.reads import unread_annotations

Json = dict[str, Any]
HALF = {"gpu-fraction": "0.5"}


def warnings(settings: Settings, annotations: Json) -> dict[str, str]:
    """The message of each warning by its path; the pod is admitted."""
    plugins = Registry(BUILTINS, discover=dict).build(settings)
    chain = AdmissionChain(plugins, settings, unread=unread_annotations(plugins))
    raw = {
        "metadata": {"name": "p", "annotations": dict(annotations)},
        "spec": {"schedulerName": "example-scheduler", "containers": [{"name": "main"}]},
    }
    verdict = chain.admit_pod(raw, AdmissionInfo(request_uid="s"))
    assert verdict.allowed
    assert chain.validate_pod(raw, raw, AdmissionInfo(operation="UPDATE")).warnings == ()
    return {warning.path: f"{warning.rule}: {warning.message}" for warning in verdict.warnings}


OFF = [
    "nvidia.com/container.main.gpu-memory.limit",
    "kai.scheduler/container.main.gpu-memory.portion.limit",
    "gpu-fraction.limit",
]


@pytest.mark.parametrize("annotation", OFF)
def test_an_annotation_of_a_plugin_that_is_off_names_the_plugin_and_the_setting(annotation: str) -> None:
    messages = warnings(Settings(), {**HALF, annotation: "8Gi"})
    assert list(messages) == [f"metadata.annotations[{annotation}]"]
    (message,) = messages.values()
    assert message.startswith("plugin/off: plugin nv_fractions is off: ")
    assert "gpuSharing.nvFractions" in message
    assert "did you mean" not in message


def test_an_annotation_of_an_enabled_plugin_is_no_warning() -> None:
    enabled = Settings(gpu_sharing=GpuSharingSettings(nv_fractions=True))
    assert warnings(enabled, {"gpu-memory": "8192", OFF[0]: "16Gi"}) == {}


def test_a_share_without_the_plugin_that_gives_it_is_named() -> None:
    off = Settings(plugins=(PluginEntry(name="gpu_sharing", enabled=False),))
    message = warnings(off, HALF)["metadata.annotations[gpu-fraction]"]
    assert "plugin gpu_sharing is off" in message
    assert "config.plugins.gpu_sharing.enabled: true switches it on" in message
