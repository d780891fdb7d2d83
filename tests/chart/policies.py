"""The chart's policies in force on a real API server, and requests reviewed as one user or another.

No webhook is called here: only roles, accounts and policies are installed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import yaml

from bowline.api import names
from bowline.localcluster.api import ApiClient
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from tests.chart.objects import PODS, pod
from tests.chart.rendering import NAMESPACE, Rendered
from tests.waiting import wait_until

DRY = "?dryRun=All"
RESERVATIONS = "/api/v1/namespaces/kai-resource-reservation/pods"
RECONCILER = f"system:serviceaccount:{NAMESPACE}:bowline-reconciler"
AGENT = "system:serviceaccount:kai-resource-reservation:bowline-gpu-agent"
POLICY = "ValidatingAdmissionPolicy"
WEBHOOK = f"system:serviceaccount:{NAMESPACE}:bowline-webhook"
TEST = f"system:serviceaccount:{NAMESPACE}:bowline-test"
SECRET = f"/api/v1/namespaces/{NAMESPACE}/secrets/bowline-ca"
ROLES = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
KINDS = (*ROLES, "PriorityClass", "Secret", POLICY, f"{POLICY}Binding")


@dataclass(slots=True)
class Policies:
    """Sends requests as a user and returns the policies' denials."""

    cluster: Cluster
    clients: dict[tuple[str, ...], ApiClient] = field(default_factory=dict)

    def as_user(self, user: str, pod_uid: str = "") -> ApiClient:
        """Return the client of that user; `pod_uid` is the pod that the user's token was issued to."""
        key = (user, pod_uid)
        if key not in self.clients:
            extra = {"pod_uid": pod_uid} if pod_uid else {}
            self.clients[key] = self.cluster.api_as(user, **extra)
        return self.clients[key]

    def denial(self, client: ApiClient, method: str, path: str, body: Any = None) -> str:
        """Return the policy's message, empty if the request is allowed. Any other error fails the test."""
        kind = "application/json"
        if method == "PATCH":
            kind = "application/json-patch+json" if isinstance(body, list) else "application/merge-patch+json"
        try:
            client.request(method, path, body, kind)
        except LocalApiError as error:
            before, separator, text = str(error).partition("denied request: ")
            if not separator or POLICY not in before or error.status != 403:
                raise AssertionError(f"not denied by a policy: {error}") from error
            return text
        return ""

    def close(self) -> None:
        """Close every connection."""
        for client in self.clients.values():
            client.close()


@contextmanager
def installation(cluster: Cluster, manifests: Rendered) -> Iterator[Policies]:
    """Install accounts, roles and policies, in force inside the block."""
    # A release of another test leaves the namespace for restricted pods only; here policies decide.
    namespace = RESERVATIONS.rpartition("/")[0]
    cluster.api.patch(namespace, {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": None}}})
    until_none_in_force(cluster)
    text = yaml.safe_dump_all(manifests.of_kind(*KINDS))
    cluster.kubectl("apply", "--server-side", "--validate=strict", "-f", "-", input=text)
    policies = Policies(cluster)
    try:
        _until_in_force(policies, manifests)
        yield policies
    finally:
        policies.close()
        cluster.kubectl("delete", "-f", "-", input=text)


def until_none_in_force(cluster: Cluster) -> None:
    """Wait until the API server applies no policy of the chart that another test has deleted."""
    invalid = pod("probe", "example-scheduler", {names.GPU_FRACTION: "50%"})

    def is_created() -> bool:
        try:
            cluster.api.post(f"{PODS}{DRY}", invalid)
        except LocalApiError:
            return False
        return True

    wait_until(is_created, "the end of the policies of another test")


def remove(api: ApiClient, path: str) -> None:
    """Delete an object immediately, with the finalizers that no controller would remove here."""
    left = api.request("DELETE", path, {"gracePeriodSeconds": 0})
    if left.get("metadata", {}).get("finalizers"):
        api.patch(path, {"metadata": {"finalizers": None}})


def _until_in_force(policies: Policies, manifests: Rendered) -> None:
    """The API server watches policies; one that is in force denies its probe."""
    reconciler, agent = policies.as_user(RECONCILER), policies.as_user(AGENT)
    share = {"metadata": {"name": "probe", "labels": {names.LABEL_GPU_SHARING: "true"}}}
    core, claims = "/api/v1/namespaces/default", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
    policies.cluster.api.post(f"{core}/pods", _pod("probe"))
    policies.cluster.api.post(f"{core}/persistentvolumeclaims", _volume_claim())
    policies.cluster.api.post("/api/v1/persistentvolumes", _volume())
    label_patch = {"metadata": {"labels": {"x": "y"}}}
    user = policies.as_user("probe")
    probes: dict[str, tuple[ApiClient, str, str, Any]] = {
        "devices": (user, "POST", f"{core}/pods{DRY}", _pod("x", labels={names.LABEL_GPU_GROUP: "g"})),
        "share-configmaps": (user, "POST", f"{core}/configmaps{DRY}", share),
        "reconciler-pods": (reconciler, "PATCH", f"{core}/pods/probe{DRY}", label_patch),
        "reconciler-pod-status": (reconciler, "PATCH", f"{core}/pods/probe/status{DRY}", label_patch),
        "reconciler-configmaps": (reconciler, "POST", f"{core}/configmaps{DRY}", share),
        "reconciler-claims": (reconciler, "POST", f"{claims}{DRY}", {"metadata": {"name": "x"}, "spec": {}}),
        "reconciler-volumes": (reconciler, "PATCH", f"/api/v1/persistentvolumes/probe{DRY}", label_patch),
        "reconciler-bindings": (reconciler, "POST", f"{core}/pods/probe/binding{DRY}", _binding()),
        "reconciler-volume-claims": (reconciler, "PATCH", f"{core}/persistentvolumeclaims/probe{DRY}", label_patch),
        "agent": (agent, "PATCH", f"{RESERVATIONS}/probe{DRY}", label_patch),
        "webhook-secret": (policies.as_user(WEBHOOK), "PUT", SECRET + DRY, _secret(immutable=True)),
        "test": (policies.as_user(TEST), "POST", f"{core}/pods", _pod("probe")),
    }
    policies.cluster.api.post(RESERVATIONS, _pod("probe"))
    rights = [("probe", "edit", "default")]
    for who, role, where in rights:
        policies.cluster.kubectl(
            "create", "rolebinding", who, f"--clusterrole={role}", f"--user={who}", f"-n={where}"
        )
    try:
        present = {policy["metadata"]["name"].removeprefix("bowline-") for policy in manifests.of_kind(POLICY)}
        for name in sorted(present & set(probes)):
            probe = probes[name]
            wait_until(lambda probe=probe: _is_denied(policies, *probe), f"a denial by policy {name}")  # type: ignore[misc]
    finally:
        for path in (f"{core}/pods", RESERVATIONS, f"{core}/persistentvolumeclaims", "/api/v1/persistentvolumes"):
            remove(policies.cluster.api, f"{path}/probe")
        for who, _, where in rights:
            policies.cluster.kubectl("delete", "rolebinding", who, f"-n={where}")


def _is_denied(policies: Policies, client: ApiClient, method: str, path: str, body: Any) -> bool:
    """Return whether a policy denies the request; False also while the user's rights are not in force yet, and where
    the object exists.
    """
    try:
        return bool(policies.denial(client, method, path, body))
    except AssertionError as error:
        if "is forbidden: User" not in str(error) and "already exists" not in str(error):
            raise
        return False


def _pod(name: str, **metadata: Any) -> dict[str, Any]:
    spec = {"containers": [{"name": "main", "image": "registry.example/app:1"}]}
    return {"metadata": {"name": name, **metadata}, "spec": spec}


def _secret(**fields: Any) -> dict[str, Any]:
    return {"metadata": {"name": SECRET.rpartition("/")[2]}, "type": "Opaque", **fields}


def _binding() -> dict[str, Any]:
    target = {"apiVersion": "v1", "kind": "Node", "name": "node"}
    return {"metadata": {"name": "probe", "labels": {"x": "y"}}, "target": target}


def _volume_claim() -> dict[str, Any]:
    claim_spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {"metadata": {"name": "probe"}, "spec": claim_spec}


def _volume() -> dict[str, Any]:
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
    return {"metadata": {"name": "probe"}, "spec": spec}
