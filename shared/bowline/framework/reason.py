"""Reasons of terminal failures and suggestions for schedulers: each is one value with all that is said of it. Data.

The page docs/reference.md, the alerts of the chart and `bowline explain` derive from these
rows. Which failure has which reason and suggestion is decided where it is found: by a plugin, or by the reconciler.
"""

from collections.abc import Mapping
from enum import Enum, StrEnum
from types import MappingProxyType


class Suggestion(StrEnum):
    """What the scheduler may do about a terminal failure; machine-readable, in ``status.suggestion``.

    ``meaning`` is for a scheduler, ``next_step`` what follows for the pod's owner, with
    ``{scheduler}`` for its name.
    """

    _value_: str
    meaning: str
    next_step: str

    def __new__(cls, value: str, meaning: str, next_step: str) -> "Suggestion":
        member = str.__new__(cls, value)
        member._value_, member.meaning, member.next_step = value, meaning, next_step
        return member

    RESCHEDULE_ELSEWHERE = (
        "RescheduleElsewhere",
        "this node is unsuitable, another one may be suitable: decide again without it",
        "{scheduler} decides for another node",
    )
    RETRY_SAME_NODE = (
        "RetrySameNode",
        "the decision was correct, but what it needed was not ready in time: the same decision may be repeated later",
        "{scheduler} decides again",
    )
    DELETE_POD = (
        "DeletePod",
        "this pod cannot be bound to any node: delete it, so that its controller creates another one",
        "the pod is deleted",
    )


class Alert(Enum):
    """Which alert of the chart counts the failures of a reason."""

    NONE = "none"  # pods and nodes come and go
    FAILING = "BowlineRequestsFailing"  # many of them are a defect of something
    INSTALLATION = "BowlineInstallationIncomplete"  # one is enough: the release is wrong


# Suggestion to the situations in which it is given.
Cases = Mapping[Suggestion | None, str]
_NEVER: Cases = {}
_ELSEWHERE, _SAME, _DELETE = Suggestion.RESCHEDULE_ELSEWHERE, Suggestion.RETRY_SAME_NODE, Suggestion.DELETE_POD


class Reason(StrEnum):
    """Reasons of terminal failures, a closed list: ``status.failure.reason`` of a Failed request.

    - ``cases``: the suggestions that failures for this reason have, and when; empty: no request ends with it.
    - ``remedy``: a command that shows what is to be corrected, with ``{namespace}``, ``{system}`` (that of the
      release) and ``{node}``; empty where the sentence of the failure says it.
    - ``alert``: which alert counts it.
    """

    _value_: str
    cases: Cases
    remedy: str
    alert: Alert

    def __new__(cls, value: str, cases: Cases, remedy: str = "", alert: Alert = Alert.FAILING) -> "Reason":
        member = str.__new__(cls, value)
        member._value_, member.remedy, member.alert = value, remedy, alert
        member.cases = MappingProxyType(dict(cases))
        return member

    POD_GONE = (
        "PodGone",
        {None: "the pod is deleted, ended, being deleted, or replaced"},
        "",
        Alert.NONE,
    )
    NODE_GONE = (
        "NodeGone",
        {_ELSEWHERE: "the node does not exist or is being deleted"},
        "kubectl get nodes",
        Alert.NONE,
    )
    NODE_UNSCHEDULABLE = (
        "NodeUnschedulable",
        {
            _ELSEWHERE: "the node was cordoned, or tainted NoSchedule or NoExecute, and the pod has no toleration "
            "for it"
        },
        "kubectl get node {node} -o jsonpath='{{.spec}}'",
        Alert.NONE,
    )
    BOUND_ELSEWHERE = (
        "BoundElsewhere",
        {None: "the pod runs on another node"},
    )
    NOT_OURS = (
        "NotOurs",
        {None: "the pod's schedulerName is not in the configuration, or its namespace is one of the cluster's own"},
    )
    NO_PLUGIN = (
        "NoPlugin",
        {None: "no enabled plugin supports what the request requires, or none binds"},
        "",
        Alert.INSTALLATION,
    )
    INVALID = (
        "Invalid",
        {
            _ELSEWHERE: "the node is not read: it has too many values, or JSON that the reader refuses",
            _DELETE: "the pod is not read for such a cause, or has more tolerations or claims than are compared",
            None: "the request contradicts itself or the pod, or leaves devices undecided",
        },
    )
    REJECTED = (
        "Rejected",
        {
            _ELSEWHERE: "a policy denies the Binding, the node has too few resources (node_fit), or no label with "
            "the size of its GPUs (hami_core, nv_fractions)",
            _DELETE: "the pod was created without references to its share's ConfigMaps, or another object owns them "
            "(gpu_sharing)",
            None: "a policy has denied the Binding to another node in the same words, the Binding's annotations "
            "would make the pod invalid, or another write was rejected",
        },
    )
    RBAC_MISSING = (
        "RBACMissing",
        {None: "the reconciler has lacked a right for at least a minute"},
        "kubectl describe clusterroles,roles -A --selector app.kubernetes.io/name=bowline",
        Alert.INSTALLATION,
    )
    BACKOFF_LIMIT_EXCEEDED = (
        "BackoffLimitExceeded",
        {_ELSEWHERE: "every attempt failed; a plugin may suggest otherwise"},
    )
    WAIT_TIMEOUT = (
        "WaitTimeout",
        {
            _SAME: "the wait expired: for the end of scheduling gates, a claim or class that does not exist, a claim "
            "that is bound without a pod",
            _ELSEWHERE: "a volume was not bound or provisioned in time, a device did not become ready "
            "(`bindTimeoutSeconds`), or a share's agent did not report its device (`gpuSharing.agentTimeout`)",
        },
    )
    DEVICE_CONFLICT = (
        "DeviceConflict",
        {
            _ELSEWHERE: "the claim is allocated to other devices, the node cannot use the device, the device has a "
            "taint that its request does not tolerate, it failed to become ready, or the pods of a GPU group use "
            "what the share needs",
            None: "a claim is being deleted, belongs to another pod, is allocated to no device, or has the maximum "
            "number of consumers",
        },
    )
    VOLUME_CONFLICT = (
        "VolumeConflict",
        {
            _ELSEWHERE: "no volume for the claim can be used on that node",
            _DELETE: "the claim under the name of the pod's ephemeral volume belongs to another object",
            None: "the claim is being deleted, has lost its volume, or requests a volume of a class without a "
            "provisioner",
        },
    )
    SUPERSEDED = (
        "Superseded",
        _NEVER,
        "",
        Alert.NONE,
    )
