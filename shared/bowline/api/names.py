"""Every label, annotation, environment variable and key that Bowline reads or writes on the wire, once.

Names without the ``bowline.dev`` domain are part of KAI-Scheduler's API and must stay as they are there. A name that
appears as a literal anywhere else in the code is a defect.
"""

from typing import Final

# --- Forms of names, as Kubernetes defines them ------------------------------------------------------------
DNS_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
DNS_SUBDOMAIN: Final = rf"{DNS_LABEL}(\.{DNS_LABEL})*"

# --- BindRequest -----------------------------------------------------------------------------------------
GROUP: Final = "scheduling.run.ai"
VERSION: Final = "v1alpha2"
API_VERSION: Final = f"{GROUP}/{VERSION}"
KIND: Final = "BindRequest"
PLURAL: Final = "bindrequests"
SINGULAR: Final = "bindrequest"
SHORT_NAME: Final = "br"
# Of a pod that names none.
DEFAULT_SCHEDULER: Final = "default-scheduler"

# --- Groups of pods ---------------------------------------------------------------------------------------
# Kubernetes' own PodGroup; KAI-Scheduler has another kind of the same name.
POD_GROUP_GROUP: Final = "scheduling.k8s.io"
POD_GROUP_VERSION: Final = "v1beta1"
POD_GROUP_API: Final = f"{POD_GROUP_GROUP}/{POD_GROUP_VERSION}"
POD_GROUP_PLURAL: Final = "podgroups"
POD_GROUP_KIND: Final = "PodGroup"
KAI_POD_GROUP_VERSION: Final = "v2alpha2"
KAI_POD_GROUP_API: Final = f"{GROUP}/{KAI_POD_GROUP_VERSION}"
# On a pod: the name of KAI-Scheduler's PodGroup.
POD_GROUP_NAME: Final = "pod-group-name"

# --- Bowline's own ---------------------------------------------------------------------------------------
DOMAIN: Final = "bowline.dev"
FINALIZER: Final = "bowline.dev/rollback"
# Beside the finalizer: the plugins of which the request may have side effects, separated by commas.
EFFECTS: Final = "bowline.dev/effects"
# On a BindRequest without spec.podUID: the UID of its pod, which the owner reference no longer tells once
# `kubectl delete pod --cascade=orphan` has removed it.
POD_UID: Final = "bowline.dev/pod-uid"
# On the Lease of the reconcilers, whose name depends on the release's: finds it.
LEASE_LABEL: Final = "bowline.dev/reconciler"
# When a leader took over a request that the previous one may have begun to prepare.
TAKEN_OVER: Final = "bowline.dev/taken-over"
# On a BindRequest whose CRD prunes Bowline's fields of the status: these fields as JSON.
CARRIED_STATUS: Final = "bowline.dev/status"
# UID of the BindRequest whose attempt has prepared the object: on a pod, carried by its Binding, once everything is
# prepared; on the ConfigMaps of a share.
PREPARED_FOR: Final = "bowline.dev/prepared-for"
# On a pod: UID of the BindRequest that has labelled it as a user of GPU groups, before its Binding.
LABELLED_FOR: Final = "bowline.dev/labelled-for"
# Of a Lease that its holder has released: the renewTime of the release, if every write of the holder was answered.
WRITES_ANSWERED: Final = "bowline.dev/writes-answered"
# Plugin checks: the kind of its objects, the annotation by which a pod names its checks, the labels of the objects.
BIND_CHECK_API_VERSION: Final = f"{DOMAIN}/v1alpha1"
BIND_CHECK_KIND: Final = "BindCheck"
CHECKS: Final = "bowline.dev/checks"
LABEL_CHECK: Final = "bowline.dev/check"
LABEL_CHECK_REQUEST: Final = "bowline.dev/request-uid"
LABEL_GPU_SHARING: Final = "bowline.dev/gpu-sharing"
# Of kubectl, with the whole object as it was applied.
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
# Of kubectl: the container that a pod is about, where it is not the first.
DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
# On the webhook's CA Secret: since when its present CA signs.
ANNOTATION_CA_SWITCHED_AT: Final = "bowline.dev/ca-switched-at"
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
# Immutable after creation, because the container's environment is.
OWNED_ANNOTATIONS: Final = (
    GPU_FRACTION,
    GPU_MEMORY,
    GPU_FRACTION_NUM_DEVICES,
    GPU_FRACTION_CONTAINER,
    MPS,
    SHARED_GPU_CONFIGMAP,
)
# Those of the above that request a share of a GPU.
SHARE_ANNOTATIONS: Final = (GPU_FRACTION, GPU_MEMORY)

# --- Configuration of a share in its container: two ConfigMaps of the pod --------------------------------
GPU_PORTION: Final = "GPU_PORTION"
NUM_OF_GPUS: Final = "RUNAI_NUM_OF_GPUS"
VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
DEVICE_MEMORY_LIMIT: Final = "CUDA_DEVICE_MEMORY_LIMIT"
# On a sharing pod, beside its group labels: the part of each device that it was given.
ANNOTATION_GPU_PORTION: Final = "bowline.dev/gpu-portion"
# On a share's ConfigMap: the GPU groups of its devices, in the order of the devices.
ANNOTATION_GPU_GROUPS: Final = "bowline.dev/gpu-groups"
# Beside it, in the same order: the modes in which they are shared; absent if all are time-slicing.
ANNOTATION_COMPUTE_MODES: Final = "bowline.dev/gpu-compute-modes"
# On a reservation pod that must reserve a lost device again: the devices, one of which it must get.
ANNOTATION_EXPECTED_DEVICES: Final = "bowline.dev/expected-devices"
# On a reservation pod: when the last request was given its device.
ANNOTATION_LAST_JOINED: Final = "bowline.dev/last-joined"
CDI_GPU_KIND: Final = "k8s.device-plugin.nvidia.com/gpu"

# --- Who shares which device: groups and the pods that hold their devices --------------------------------
# The first group of a sharing pod; ``<label>/<group>`` for each further one.
LABEL_GPU_GROUP: Final = "runai-gpu-group"
RESERVATION_APP: Final = "kai-resource-reservation"
# Not KAI-Scheduler's: its operator deletes its own account together with its binder.
RESERVATION_SERVICE_ACCOUNT: Final = "bowline-gpu-agent"
RESERVATION_CONTAINER: Final = "resource-reservation"
RESERVATION_PREFIX: Final = "gpu-reservation-"
RESERVED_DEVICE: Final = "run.ai/reserve_for_gpu_index"
DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
# On NVIDIA's ClusterPolicy: the version of its GPU operator.
LABEL_VERSION: Final = "app.kubernetes.io/version"
NODE_FAKE_GPU: Final = "run.ai/fake.gpu"
# How the pods of a group share its device: on the reservation pod, absent for time-slicing.
COMPUTE_MODE: Final = "nvidia.com/container.resource-reservation.gpu-compute.mode"
TIME_SLICING: Final = "time-slicing"
SM_SHARING: Final = "sm-sharing"

# --- What NVIDIA's GPU fractioning reads from a pod before it creates a container: prefix, container, suffix
NV_CONTAINER: Final = "nvidia.com/container."
NV_MEMORY_REQUEST: Final = ".gpu-memory.request"
NV_MEMORY_LIMIT: Final = ".gpu-memory.limit"
NV_COMPUTE_MODE: Final = ".gpu-compute.mode"
# Those are the author's. KAI-Scheduler counts a pod that has the prefix with a suffix it does not know as one without
# a GPU: up to 0.18 it knows these and the next.
NV_AUTHOR: Final = (NV_MEMORY_REQUEST, NV_MEMORY_LIMIT, NV_COMPUTE_MODE)
# Written by the binder alone: it gives a container devices.
NV_DEVICES: Final = ".gpus.devices"
# Annotations that name devices for a container runtime (CDI) or for a plugin of it (NRI), which then injects them.
# Not those of CRI-O (io.kubernetes.cri-o.Devices, devices.crio.io): its own allowed_devices limits them.
DEVICE_DOMAINS: Final = ("cdi.k8s.io", "devices.nri.io", "devices.noderesource.dev")
DEVICE_KEY_PREFIXES: Final = ("cdi-devices.",)
# Of a pod, with a container's name: CDI names that the NRI plugin of NVIDIA's container toolkit gives the container.
NRI_CONTAINER: Final = "nvidia.cdi.k8s.io/container."
# KAI-Scheduler's own: a memory limit as a part of the device, between this prefix and suffix also a container.
KAI_CONTAINER: Final = "kai.scheduler/container."
KAI_MEMORY_PORTION_LIMIT: Final = ".gpu-memory.portion.limit"
# Limits of the container that has the share, without its name: a quantity, and a part of the device.
GPU_MEMORY_LIMIT: Final = "gpu-memory.limit"
GPU_FRACTION_LIMIT: Final = "gpu-fraction.limit"

# --- Results of a binding on the pod -----------------------------------------------------------------------
RECEIVED_RESOURCE_TYPE: Final = "received-resource-type"
KAI_SCHEDULER: Final = "kai-scheduler"
QUEUE_LABEL: Final = "kai.scheduler/queue"
NUMA_PLACEMENT_PREDICTED: Final = "kai.scheduler/numa-placement-predicted"
NUMA_MEMORY_GROUPS_PREDICTED: Final = "kai.scheduler/numa-memory-groups-predicted"
CONDITION_POD_BOUND: Final = "PodBound"
# Beside it, for programs: which decision has failed (``bowline.api.failed_decision``).
CONDITION_DECISION_FAILED: Final = "bowline.dev/DecisionFailed"
# Of a BindRequest: a plugin's call for it has ended a process by blocking it.
CONDITION_SET_ASIDE: Final = "SetAside"

# --- Reasons of the events on a pod; the reasons of its PodBound condition are these or those of a failure ---------
EVENT_BOUND: Final = "Bound"
EVENT_WAITING: Final = "BindingWaiting"
EVENT_RETRY: Final = "BindingRetry"
EVENT_FAILED: Final = "BindingFailed"
EVENT_ROLLBACK_FAILED: Final = "RollbackFailed"
EVENT_RELEASE_FAILED: Final = "ReleaseFailed"
EVENT_NOT_RELEASED: Final = "NotReleased"
EVENT_NOT_PREPARED: Final = "NotPrepared"
EVENT_NOT_READ: Final = "NotRead"
# Of a running share whose device is not reserved any more, and is again.
EVENT_UNRESERVED: Final = "SharedGPUUnreserved"
EVENT_RESERVED: Final = "SharedGPUReserved"

# --- Resource claims (DRA); Kubernetes' own names ---------------------------------------------------------
RESOURCE_CLAIM_PROTECTION: Final = "resource.kubernetes.io/delete-protection"
EXTENDED_RESOURCE_CLAIM: Final = "resource.kubernetes.io/extended-resource-claim"
# Between a pod's name and the random suffix of the name of the claim created for its extended resources.
EXTENDED_RESOURCE_CLAIM_INFIX: Final = "-extended-resources-"

# --- Volumes; Kubernetes' own names -----------------------------------------------------------------------
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER: Final = "pv.kubernetes.io/bound-by-controller"
# On a PVC: the node for which to provision its volume. The provisioner removes it to return the decision.
SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
BETA_STORAGE_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"

# --- Resources and node labels ---------------------------------------------------------------------------
RESOURCE_GPU: Final = "nvidia.com/gpu"
# NVIDIA's device plugin names replicas of a GPU so, for time-slicing and MPS with renameByDefault.
RESOURCE_GPU_REPLICA: Final = "nvidia.com/gpu.shared"
RESOURCE_MIG_PREFIX: Final = "nvidia.com/mig-"
# For a container that limits this prefix + class, a DRA claim of that class is created (KEP-5004).
RESOURCE_DEVICE_CLASS_PREFIX: Final = "deviceclass.resource.kubernetes.io/"
NODE_HOSTNAME: Final = "kubernetes.io/hostname"
NODE_GPU_MEMORY: Final = "nvidia.com/gpu.memory"
# The condition of a node whose agents of GPU fractioning work.
NODE_FRACTIONING_READY: Final = "gpu-fractioning.nvidia.com/Ready"
MIRROR_POD: Final = "kubernetes.io/config.mirror"

# --- Policies of the chart that may deny a write of the reconciler; a policy's name ends with one of these -----
POLICIES: Final = (
    *("reconciler-pods", "reconciler-pod-status", "reconciler-bindings", "reconciler-configmaps"),
    *("reconciler-claims", "reconciler-volumes", "reconciler-volume-claims"),
    # Guards of users' objects, which trust this release's reconciler alone.
    *("devices", "share-configmaps"),
)
