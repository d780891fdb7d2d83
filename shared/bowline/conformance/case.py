"""What the cases have in common. Values only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

S = TypeVar("S")

# The two nodes of a conformance run's cluster.
NODE, OTHER_NODE = "gpu-node-0", "gpu-node-1"
# The label with a node's name: that of its hostname may have another value.
NODE_LABEL: Final = "example.com/node"

# The page that a scheduler keeps, and of its sentences the names of the rules that each of them states.
CONTRACT: Final = "docs/write-a-scheduler.md"
SENTENCES: Final[Mapping[str, tuple[str, ...]]] = {
    "Decide for unbound pods with your scheduler's name": ("decides", "own-pods-only", "unbound-pods-only"),
    "unless they have a scheduling gate or are being deleted": ("waits-for-gates", "decides-no-deleted-pods"),
    "a second decision for the same pod then fails with 409": ("one-request-per-pod",),
    "Any other phase: Bowline is waiting or retrying": ("waits-for-the-result",),
    "release what was assumed, and go on with the next pod": ("survives", "survives-a-denial"),
    "Repeat it after a pause": ("pauses-after-a-denial", "repeats-a-denied-request", "pauses-between-passes"),
    "The request is deleted with its pod": ("owner",),
    "binds exactly this pod, never a later one of its name": ("decides-for-a-successor",),
    "then a group per device is required": ("decides-shares", "names-groups"),
    "`count` of devices, `portion` of each as a decimal from 0 to 1": ("states-the-share",),
    "a new id reserves a device, an existing one joins it": ("joins-a-group", "group-of-one-node"),
    "the allocation of each ResourceClaim that is not allocated yet": ("allocates-claims",),
    "another decision is another request": ("changes-no-request",),
    "by its groups: the portions of a group are at most one device": ("counts-shares",),
    "A reservation pod is the device of its group": ("counts-a-reservation-once",),
    "Count on its node each pod with a `spec.nodeName` that has not ended": (
        "counts-what-is-used",
        "frees-what-has-ended",
    ),
    "each other pod with an unfinished request, by the pod's UID": ("counts-unfinished-requests",),
    "A Failed request holds nothing": ("frees-the-node",),
    "the larger of all containers with the sidecars": ("counts-init-containers", "counts-sidecars"),
    "Count `cpu`, `memory` and the number of pods as well as GPUs": ("counts-every-resource",),
    "deletes the request and decides without this node": ("reschedules-elsewhere",),
    "deletes the request; the same decision may be repeated later": ("replaces-failed-requests",),
    "deletes the pod if a controller owns it": ("deletes-a-controllers-pod", "deletes-no-pods"),
    "leaves the request for a minute, then deletes it and decides again": (
        "pauses-after-a-failure",
        "decides-again-when-the-cause-has-gone",
    ),
    "a request for a node that was deleted, cordoned or tainted since": ("leaves-unsuitable-nodes",),
    "after a restart list requests, pods and nodes": ("continues-after-a-restart",),
    "Deletes carry the UID as a precondition": ("deletes-by-uid",),
    "reports a pod that fits nowhere, once for each cause": ("reports-why", "repeats-no-event"),
    "only Bowline binds": ("binds-no-pods",),
}

_POLICY_GROUP: Final = "admissionregistration.k8s.io/v1"
POLICIES: Final = f"/apis/{_POLICY_GROUP}/validatingadmissionpolicies"
POLICY_BINDINGS: Final = f"/apis/{_POLICY_GROUP}/validatingadmissionpolicybindings"
# The resource of a Binding, for ``denial``.
BINDING: Final = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/binding"]}


@dataclass(frozen=True, slots=True)
class Case(Generic[S]):
    """A case: its name, what it promises or requires, and the function that runs it on a stage."""

    name: str
    promise: str
    run: Callable[[S], None]


# The message of a quota: the attempt is retried, and a request that has none left ends Failed.
QUOTA: Final = "exceeded quota: conformance"


def denial(
    namespace: str, resource: Mapping[str, Any], expression: str, message: str = QUOTA
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a policy that denies creations for one pod, and its binding to the namespace."""
    rule = {**resource, "operations": ["CREATE"]}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    validation = {"expression": expression, "message": message}
    policy = {
        "apiVersion": _POLICY_GROUP,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": namespace},
        "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation]},
    }
    binding = {
        "apiVersion": _POLICY_GROUP,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": namespace},
        "spec": {
            "policyName": namespace,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": selector},
        },
    }
    return policy, binding
