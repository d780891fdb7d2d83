"""A policy of somebody else that denies every Binding of a namespace."""

from collections.abc import Iterator
from contextlib import contextmanager

from bowline.api.failed_decision import failed_decision_of
from tests.live import LiveCluster


def denied_node(live: LiveCluster, name: str) -> str | None:
    """Return the node of the pod's decision that has failed."""
    failure = failed_decision_of(live.pod(name))
    return failure.decision.node if failure is not None and failure.has_ended else None


@contextmanager
def denied_bindings(live: LiveCluster) -> Iterator[None]:
    """A policy of somebody else denies every Binding of the test's namespace."""
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
    name = f"deny-{live.namespace}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": live.namespace}}
    live.cluster.api.post(
        f"{path}ies",
        {
            "metadata": {"name": name},
            "spec": {
                "matchConstraints": {"resourceRules": [rule], "namespaceSelector": selector},
                "validations": [{"expression": "false", "message": "the quota of the team is used up"}],
            },
        },
    )
    bound_to = {"policyName": name, "validationActions": ["Deny"]}
    live.cluster.api.post(f"{path}ybindings", {"metadata": {"name": name}, "spec": bound_to})
    try:
        yield
    finally:
        live.cluster.api.delete(f"{path}ybindings/{name}")
        live.cluster.api.delete(f"{path}ies/{name}")
