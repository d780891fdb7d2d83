"""The plugin's own arguments; settings shared by several plugins are in ``gpuSharing`` of the configuration."""

from decimal import Decimal
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

from bowline.api import names
from bowline.api.quantity import parse_quantity
from bowline.framework.interface.plugin import PluginConfig


def _valid_quantity(text: str) -> str:
    try:
        wrong = parse_quantity(text) < 0
    except ValueError:
        wrong = True
    if wrong:
        raise ValueError("must be a quantity of 0 or more, such as 100m, 2 or 128Mi")
    return text


Quantities = dict[str, Annotated[str, AfterValidator(_valid_quantity)]]
_LABEL_VALUE = "^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"


class GpuSharingConfig(PluginConfig):
    """``args`` of gpu_sharing."""

    model_config = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)

    scale_adjust_namespace: str = "kai-scale-adjust"
    """Namespace in which a scheduler creates pods that represent GPUs requested from an autoscaler. While one of them
    is not scheduled, no new device is reserved: the reservation would use the device meant for it. Empty: none."""
    overcommit: Annotated[Decimal, Field(ge=1)] = Decimal(1)
    """What the portions of the pods on one device may add up to. Above 1 devices are over-packed on purpose, as with
    time slicing."""
    reservation_runtime_class_name: str = ""
    """RuntimeClass of reservation pods; wanted where the default runtime shows no GPU to a container."""
    reservation_requests: Quantities = {"cpu": "10m", "memory": "64Mi"}
    """Requests of reservation pods besides the one GPU: what an agent needs. A pod without any is evicted first where
    a node is short of memory, and its device is then lost."""
    reservation_limits: Quantities = Field(default_factory=dict)
    """Limits of reservation pods besides the one GPU."""
    reservation_priority_class_name: str = ""
    """PriorityClass of reservation pods. Empty: the cluster's default."""
    reservation_pod_security_context: dict[str, Any] = {
        "runAsNonRoot": True,
        "runAsUser": 10000,
        "runAsGroup": 10000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    """securityContext of reservation pods, as a whole. Empty: none, as on OpenShift, which assigns users itself."""
    reservation_container_security_context: dict[str, Any] = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    """securityContext of their container, as a whole. Empty: none."""
    reservation_app_label: Annotated[str, Field(pattern=_LABEL_VALUE)] = names.RESERVATION_APP
    """Label ``app`` of reservation pods, by which KAI-Scheduler does not count them as pods with a GPU. The same as
    its option --resource-reservation-app-label."""
