"""Every label, annotation, environment variable and key that Bowline reads or writes on the wire, once.

Names without the ``bowline.dev`` domain are a contract with KAI-Scheduler's users and stay as they are there.
A name that appears as a literal anywhere else in the code is a defect.
"""

from typing import Final

# --- BindRequest -----------------------------------------------------------------------------------------
GROUP: Final = "scheduling.run.ai"
VERSION: Final = "v1alpha2"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "BindRequest"
PLURAL: Final = "bindrequests"
SINGULAR: Final = "bindrequest"
SHORT_NAME: Final = "br"

# --- Bowline's own ---------------------------------------------------------------------------------------
DOMAIN: Final = "bowline.dev"
FINALIZER: Final = "bowline.dev/rollback"
LABEL_GPU_SHARING: Final = "bowline.dev/gpu-sharing"
CONFIG_API_VERSION: Final = "config.bowline.dev/v1alpha1"
CONFIG_KIND: Final = "BowlineConfiguration"

FIELD_MANAGER_WEBHOOK: Final = "bowline-webhook"
FIELD_MANAGER_RECONCILER: Final = "bowline-reconciler"
FIELD_MANAGER_CABUNDLE: Final = "bowline-cabundle"
EVENT_SOURCE: Final = "bowline"

# --- Pod annotations of a GPU share ----------------------------------------------------------------------
GPU_FRACTION: Final = "gpu-fraction"
GPU_MEMORY: Final = "gpu-memory"
GPU_FRACTION_NUM_DEVICES: Final = "gpu-fraction-num-devices"
GPU_FRACTION_CONTAINER: Final = "gpu-fraction-container-name"
MPS: Final = "mps"
SHARED_GPU_CONFIGMAP: Final = "runai/shared-gpu-configmap"
# Fixed at creation, because the container's environment is.
OWNED_ANNOTATIONS: Final = (
    GPU_FRACTION,
    GPU_MEMORY,
    GPU_FRACTION_NUM_DEVICES,
    GPU_FRACTION_CONTAINER,
    MPS,
    SHARED_GPU_CONFIGMAP,
)
# Those of the above with which a user asks for a share of a GPU.
SHARE_ANNOTATIONS: Final = (GPU_FRACTION, GPU_MEMORY)

# --- What a binding leaves on the pod --------------------------------------------------------------------
RECEIVED_RESOURCE_TYPE: Final = "received-resource-type"
NUMA_PLACEMENT_PREDICTED: Final = "kai.scheduler/numa-placement-predicted"
CONDITION_POD_BOUND: Final = "PodBound"

# --- Resources and node labels ---------------------------------------------------------------------------
RESOURCE_GPU: Final = "nvidia.com/gpu"
RESOURCE_MIG_PREFIX: Final = "nvidia.com/mig-"
# A container that limits this prefix + class gets a DRA claim of that class made for it (KEP-5004).
RESOURCE_DEVICE_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
NODE_GPU_COUNT: Final = "nvidia.com/gpu.count"
NODE_GPU_MEMORY: Final = "nvidia.com/gpu.memory"
MIRROR_POD: Final = "kubernetes.io/config.mirror"
