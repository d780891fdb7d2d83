"""A namespace in which no pod can be bound: its webhook on pods/binding is unavailable, with failurePolicy Fail.

Each of its requests must end as Failed, and must not delay any other request. The reason names the failure of the
last attempt: the webhook, or for a few of them a fault of the storm.
"""

import random
from dataclasses import dataclass, field
from typing import Any

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from bowline.testing.builders import bind_request, pod
from tests.faults.administrator import Administrator, create_once, list_pages

NAMESPACE = "storm-blocked"
WEBHOOK = "binding.storm-blocked.example"
_CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
_OTHER_FAULT = "Failed, another fault at the last attempt"
REQUESTS = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.PLURAL}"


@dataclass(slots=True)
class BlockedNamespace:
    """Creates the namespace and, while the storm lasts, pods and requests in it."""

    api: Administrator
    nodes: int
    pod_names: list[str] = field(default_factory=list)

    def open(self, cluster: Cluster) -> None:
        """Create the namespace and the webhook configuration, whose address refuses connections."""
        cluster.make_namespace(NAMESPACE)
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods/binding"], "operations": ["CREATE"]}
        webhook = {
            "name": WEBHOOK,
            "clientConfig": {"url": "https://127.0.0.1:1/"},
            "rules": [rule],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": NAMESPACE}},
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }
        self.api.post(_CONFIGURATIONS, {"metadata": {"name": NAMESPACE}, "webhooks": [webhook]})

    def submit(self, rng: random.Random) -> bool:
        """Create one more pod and its request."""
        name = f"pod-{len(self.pod_names)}"
        self.pod_names.append(name)
        uid = create_once(self.api, _PODS, pod(name, NAMESPACE), {})
        create_once(
            self.api, REQUESTS, bind_request(name, f"gpu-node-{rng.randrange(self.nodes)}", NAMESPACE, uid), {}
        )
        return True

    def unfinished_requests(self) -> list[str]:
        """Return the requests that have not ended or have a finalizer of ours."""
        return [
            request["metadata"]["name"]
            for request in list_pages(self.api, REQUESTS)
            if classify(request) == "not ended" or request["metadata"].get("finalizers")
        ]

    def examine(self) -> list[str]:
        """Return the outcome of each request; a pod with a node counts as bound in spite of its webhook."""
        bound = [item["metadata"]["name"] for item in list_pages(self.api, _PODS) if item["spec"].get("nodeName")]
        outcomes = [classify(request) for request in list_pages(self.api, REQUESTS)]
        if 10 * outcomes.count(_OTHER_FAULT) > len(outcomes):  # about as often as any call fails
            outcomes.append("UNTRUE without the webhook's name: more than a tenth")
        return outcomes + ["UNTRUE bound" for _ in bound]


def classify(request: dict[str, Any]) -> str:
    """Return the outcome of a request of the namespace, or what is untrue in it."""
    status = request.get("status") or {}
    if status.get("phase") not in ("Succeeded", "Failed"):
        return "not ended"
    reason = str(status.get("reason", ""))
    if status["phase"] == "Failed" and reason.startswith("BackoffLimitExceeded"):
        return "Failed, webhook unavailable" if WEBHOOK in reason else _OTHER_FAULT
    return f"UNTRUE {status['phase']} {reason}"
