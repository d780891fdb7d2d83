"""What the cases have in common. Values only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

S = TypeVar("S")

# The two nodes of a conformance run's cluster.
NODE, OTHER_NODE = "gpu-node-0", "gpu-node-1"

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
