"""The BindRequest of KAI-Scheduler by version: the fields of its schema, and requests as its scheduler writes them.

Fields are recorded as path and type; an AllocationResult and a DeviceRequest of resource.k8s.io are not followed.
0.12.0 and 0.17.0 from its CustomResourceDefinition, 0.18 from what it writes.
"""

from typing import Any

from tests.api.samples import ALLOCATION, GROUP, spec

V0_12 = {
    "backoffLimit": "integer",
    "podName": "string",
    "receivedGPU": "object",
    "receivedGPU.count": "integer",
    "receivedGPU.portion": "string",
    "receivedResourceType": "string",
    "resourceClaimAllocations": "array",
    "resourceClaimAllocations[].allocation": "object",
    "resourceClaimAllocations[].name": "string",
    "selectedGPUGroups": "array",
    "selectedGPUGroups[]": "string",
    "selectedNode": "string",
}
V0_17 = V0_12 | {
    "extendedResourceClaimAllocation": "object",
    "extendedResourceClaimAllocation.allocation": "object",
    "extendedResourceClaimAllocation.containerMappings": "array",
    "extendedResourceClaimAllocation.deviceRequests": "array",
    "predictedNUMAZones": "array",
    "predictedNUMAZones[].amount": "object",
    "predictedNUMAZones[].zone": "string",
}
V0_18 = V0_17 | {
    "predictedNUMAMemoryGroups": "array",
    "predictedNUMAMemoryGroups[].amount": "object",
    "predictedNUMAMemoryGroups[].memoryNodes": "array",
    "predictedNUMAMemoryGroups[].memoryNodes[]": "string",
    "receivedGPU.computePortion": "string",
    "selectedFractionalGpuGroups": "array",
    "selectedFractionalGpuGroups[].computeSharingMode": "string",
    "selectedFractionalGpuGroups[].id": "string",
}
SCHEMAS = {"0.12": V0_12, "0.17": V0_17, "0.18": V0_18}

# Where Bowline's schema differs, with the reason. ``?``: any type, the API server checks the content.
DIFFERENCES = {
    "resourceClaimAllocations[].allocation": "stored as written: the API server validates it in the ResourceClaim",
    "extendedResourceClaimAllocation.allocation": "stored as written, as the other allocation",
}
OWN_FIELDS = {"podUID": "which pod of the name is meant; filled in from the owner reference"}

_SHARE = {"receivedResourceType": "Fraction", "receivedGPU": {"count": 1, "portion": "0.50"}}
_PLAIN = spec(receivedGPU={"portion": "0.00"})
_WHOLE = spec(receivedGPU={"count": 1, "portion": "1.00"})
_CLAIM = spec(resourceClaimAllocations=[{"name": "dev", "allocation": ALLOCATION}])
_EXTENDED = spec(
    extendedResourceClaimAllocation={
        "allocation": ALLOCATION,
        "deviceRequests": [{"name": "container-0", "exactly": {"deviceClassName": "gpu", "count": 1}}],
        "containerMappings": [
            {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "container-0"}
        ],
    }
)
_ZONES = spec(predictedNUMAZones=[{"zone": "node-0", "amount": {"cpu": "4", "nvidia.com/gpu": 1}}])
_NEW_GROUPS = [{"id": GROUP, "computeSharingMode": "sm-sharing"}]
_NEW_SHARE = {**_SHARE, "receivedGPU": {"count": 1, "portion": "0.50", "computePortion": "0.25"}}
_V0_12_REQUESTS = [_PLAIN, _WHOLE, spec(**_SHARE, selectedGPUGroups=[GROUP]), _CLAIM]
_V0_17_REQUESTS = [*_V0_12_REQUESTS, _EXTENDED, _ZONES]
REQUESTS: dict[str, list[dict[str, Any]]] = {
    "0.12": _V0_12_REQUESTS,
    "0.17": _V0_17_REQUESTS,
    "0.18": [
        *_V0_17_REQUESTS,
        # Its scheduler writes both lists; the older one is deprecated.
        spec(**_NEW_SHARE, selectedFractionalGpuGroups=_NEW_GROUPS, selectedGPUGroups=[GROUP]),
        spec(**_NEW_SHARE, selectedFractionalGpuGroups=_NEW_GROUPS),
        spec(**_SHARE, selectedFractionalGpuGroups=[{"id": GROUP}]),
        spec(predictedNUMAMemoryGroups=[{"memoryNodes": ["0", "1"], "amount": {"memory": "16Gi"}}]),
    ],
}
