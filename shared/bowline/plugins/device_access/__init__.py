"""Denies containers access to GPUs that they have not requested.

Admission only. On a node with the NVIDIA runtime a container sees the devices that its environment names, and many
images name all devices: a pod that requested none then runs on a GPU of another pod. Containers without a GPU get
``NVIDIA_VISIBLE_DEVICES=void``, and other values set by hand are denied. This guards against the common path, not
against privileged containers or mounted device files. The rules are in ``rules``; off by default.
"""

from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import Annotated

from pydantic import Field

from bowline.api import names
from bowline.plugin import AdmissionInfo, AdmissionPlugin, FieldError, MutablePod, Object, PluginConfig, Settings
from bowline.plugins.device_access.rules import (
    RULES,
    container_errors,
    hiding_errors,
    prefix_errors,
)
from bowline.plugins.visible_devices import ContainerRef, containers_of, hide_devices, new_ephemeral_containers


class DeviceAccessConfig(PluginConfig):
    """``args`` of the plugin."""

    gpu_resources: Annotated[tuple[str, ...], Field(alias="gpuResources")] = ()
    """Resources besides nvidia.com/gpu, nvidia.com/gpu.shared and nvidia.com/mig-* that give a container a GPU, such
    as the name under which a DRA device class is offered as an extended resource. A pod does not show what such a
    name means."""


class DeviceAccess(AdmissionPlugin[DeviceAccessConfig]):
    """Hides all devices from containers without a GPU, and denies entries that would override that."""

    name = "device_access"
    rules = RULES
    # The environment of a share's container is added first.
    after = ("gpu_sharing",)

    def __init__(self, args: DeviceAccessConfig, settings: Settings) -> None:
        super().__init__(args, settings)
        gpu_resources = frozenset((names.RESOURCE_GPU_REPLICA, *args.gpu_resources))
        self._containers = partial(containers_of, gpu_resources=gpu_resources)

    def mutate_pod(self, pod: MutablePod, info: AdmissionInfo) -> None:
        hide_devices(pod, self._containers(pod.raw))

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        """Validate a new pod only: the environment of a stored pod is immutable."""
        if old is not None:
            return ()
        return chain(prefix_errors(pod), _all_errors(self._containers(pod), info))

    def mutate_ephemeral_containers(self, pod: MutablePod, old: Object, info: AdmissionInfo) -> None:
        hide_devices(pod, new_ephemeral_containers(pod.raw, old))

    def validate_ephemeral_containers(self, pod: Object, old: Object, info: AdmissionInfo) -> Iterable[FieldError]:
        return _all_errors(new_ephemeral_containers(pod, old), info)


def _all_errors(refs: Iterable[ContainerRef], info: AdmissionInfo) -> Iterable[FieldError]:
    for ref in refs:
        yield from container_errors(ref)
        if info.is_validating_webhook:
            yield from hiding_errors(ref)
