"""The rights of the two ServiceAccounts and of users, evaluated by the API server."""

from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from tests.chart.rendering import NAMESPACE, Chart
from tests.waiting import wait_until

WEBHOOK, RECONCILER = "bowline-webhook", "bowline-reconciler"
ADMISSION = "admissionregistration.k8s.io:validatingwebhookconfigurations"
MUTATING = "admissionregistration.k8s.io:mutatingwebhookconfigurations"
POLICIES = "admissionregistration.k8s.io:validatingadmissionpolicies"
LEASES = "coordination.k8s.io:leases"
RESERVED = {"namespace": "kai-resource-reservation"}
MAY = [
    pytest.param(WEBHOOK, "patch", ADMISSION, {"name": WEBHOOK}, True, id="the webhook writes its own CA"),
    pytest.param(
        WEBHOOK, "patch", MUTATING, {"name": WEBHOOK}, True, id="the webhook writes it for its mutations too"
    ),
    pytest.param(WEBHOOK, "patch", ADMISSION, {"name": "other"}, False, id="the webhook writes no other one"),
    pytest.param(WEBHOOK, "create", ADMISSION, {}, False, id="the webhook creates no configuration"),
    pytest.param(WEBHOOK, "patch", MUTATING, {"name": "other"}, False, id="the webhook patches no mutating one"),
    pytest.param(WEBHOOK, "create", MUTATING, {}, False, id="the webhook creates no mutating configuration"),
    pytest.param(WEBHOOK, "patch", POLICIES, {"name": "x"}, False, id="the webhook changes no policy"),
    pytest.param(WEBHOOK, "list", ADMISSION, {}, False, id="the webhook lists no configurations"),
    pytest.param(WEBHOOK, "get", ":pods", {}, False, id="the webhook reads no pods"),
    pytest.param(WEBHOOK, "patch", ":pods", {}, False, id="the webhook changes no pods"),
    pytest.param(WEBHOOK, "watch", ":nodes", {}, True, id="it follows the nodes' labels"),
    pytest.param(
        WEBHOOK,
        "watch",
        f"{names.GROUP}:bindrequests",
        {},
        True,
        id="the webhook watches failed requests",
    ),
    pytest.param(WEBHOOK, "get", ":secrets", {"namespace": NAMESPACE}, False, id="the webhook reads no secrets"),
    pytest.param(
        WEBHOOK,
        "update",
        ":secrets",
        {"name": "bowline-ca", "namespace": NAMESPACE},
        True,
        id="the webhook updates its CA's Secret",
    ),
    pytest.param(
        WEBHOOK,
        "get",
        ":secrets",
        {"name": "bowline-ca"},
        False,
        id="the webhook reads no such Secret in another namespace",
    ),
    pytest.param(WEBHOOK, "create", ":secrets", {"namespace": NAMESPACE}, False, id="the webhook creates no Secret"),
    pytest.param(WEBHOOK, "delete", ":secrets", {"namespace": NAMESPACE}, False, id="it deletes none"),
    pytest.param(RECONCILER, "create", ":pods/binding", {}, True, id="the reconciler binds pods"),
    pytest.param(RECONCILER, "patch", ":pods/status", {}, True, id="the reconciler writes a pod's condition"),
    pytest.param(RECONCILER, "patch", ":pods", {}, True, id="the reconciler patches the labels of a sharing pod"),
    pytest.param(RECONCILER, "create", ":pods", {}, False, id="the reconciler creates no pod"),
    pytest.param(RECONCILER, "delete", ":pods", {}, False, id="the reconciler deletes no pod"),
    pytest.param(RECONCILER, "delete", ":pods", RESERVED, True, id="the reconciler deletes reservation pods"),
    pytest.param(RECONCILER, "get", ":configmaps", {}, True, id="it writes the ConfigMaps of a share"),
    pytest.param(RECONCILER, "get", ":configmaps", {"namespace": "kube-system"}, True, id="it reads any ConfigMap"),
    pytest.param(RECONCILER, "list", ":configmaps", {}, False, id="the reconciler lists no ConfigMaps"),
    pytest.param(
        RECONCILER, "create", f"{names.GROUP}:bindrequests", {}, False, id="the reconciler creates no requests"
    ),
    pytest.param(RECONCILER, "patch", f"{names.GROUP}:bindrequests/status", {}, True, id="it reports on them"),
    pytest.param(RECONCILER, "delete", f"{names.GROUP}:bindrequests", {}, True, id="it deletes finished requests"),
    pytest.param(
        RECONCILER, "update", "resource.k8s.io:resourceclaims/status", {}, True, id="it allocates any claim"
    ),
    pytest.param(RECONCILER, "create", "events.k8s.io:events", {}, True, id="it creates events in any namespace"),
    pytest.param(RECONCILER, "create", LEASES, {"namespace": NAMESPACE}, True, id="it creates Leases of any name"),
    pytest.param(RECONCILER, "create", LEASES, {}, False, id="it creates no Lease in another namespace"),
    pytest.param(
        RECONCILER, "update", LEASES, {"name": RECONCILER, "namespace": NAMESPACE}, True, id="it renews its Lease"
    ),
    pytest.param(
        RECONCILER,
        "update",
        LEASES,
        {"name": "other", "namespace": NAMESPACE},
        False,
        id="the reconciler renews no other Lease",
    ),
    pytest.param(
        RECONCILER,
        "delete",
        LEASES,
        {"name": RECONCILER, "namespace": NAMESPACE},
        True,
        id="the reconciler may set the owner of its Lease",
    ),
    pytest.param(
        RECONCILER,
        "delete",
        LEASES,
        {"name": "other", "namespace": NAMESPACE},
        False,
        id="the reconciler deletes no other Lease",
    ),
    pytest.param(
        RECONCILER,
        "update",
        LEASES,
        {"name": RECONCILER},
        False,
        id="the reconciler renews no Lease in another namespace",
    ),
    pytest.param(
        RECONCILER, "watch", LEASES, {"namespace": NAMESPACE}, False, id="the reconciler watches only its own Lease"
    ),
    pytest.param(RECONCILER, "get", ":secrets", {"namespace": NAMESPACE}, False, id="it reads no secrets"),
]


def may(cluster: Cluster, user: str, verb: str, resource: str, *, name: str = "", namespace: str = "default") -> bool:
    """Ask the API server whether the user may do that to ``GROUP:RESOURCE[/SUBRESOURCE]``."""
    group, _, rest = resource.partition(":")
    kind, _, subresource = rest.partition("/")
    attributes = {"verb": verb, "group": group, "resource": kind, "subresource": subresource, "name": name}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": user,
            "resourceAttributes": {**attributes, "namespace": namespace},
        },
    }
    answer = cluster.api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


@pytest.fixture(scope="module")
def cluster_with_roles(chart: Chart, chart_cluster: Cluster) -> Iterator[Cluster]:
    """The chart's roles and accounts, without the rest of it."""
    roles = chart.render().of_kind("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    text = yaml.safe_dump_all(roles)
    chart_cluster.kubectl("apply", "--server-side", "-f", "-", input=text)
    # The authorizer watches roles and bindings.
    wait_until(lambda: all(is_in_force(chart_cluster, case.values) for case in MAY), "the rights are in force")
    yield chart_cluster
    chart_cluster.kubectl("delete", "-f", "-", input=text)


def is_in_force(cluster: Cluster, case: Any) -> bool:
    """Return whether the account has the right; True for one that it must not have."""
    account, verb, resource, where, allowed = case
    return not allowed or may(cluster, f"system:serviceaccount:{NAMESPACE}:{account}", verb, resource, **where)


@pytest.mark.parametrize(("account", "verb", "resource", "where", "allowed"), MAY)
def test_the_accounts_may(
    cluster_with_roles: Cluster, account: str, verb: str, resource: str, where: dict[str, str], allowed: bool
) -> None:
    user = f"system:serviceaccount:{NAMESPACE}:{account}"
    assert may(cluster_with_roles, user, verb, resource, **where) is allowed


def test_viewers_of_a_namespace_may_only_view_its_requests(cluster_with_roles: Cluster) -> None:
    cluster_with_roles.kubectl(
        "create", "rolebinding", "viewer", "--clusterrole=view", "--user=viewer", "--namespace=default"
    )
    requests = f"{names.GROUP}:{names.PLURAL}"
    # A controller adds the right to the role "view"; each attempt is a request, no sleep.
    while not may(cluster_with_roles, "viewer", "list", requests):
        pass
    assert may(cluster_with_roles, "viewer", "watch", requests)
    assert not may(cluster_with_roles, "viewer", "create", requests)
    assert not may(cluster_with_roles, "viewer", "list", requests, namespace="kube-system")
    for role in ("edit", "admin"):
        cluster_with_roles.kubectl(
            "create", "rolebinding", role, f"--clusterrole={role}", f"--user={role}", "-n=default"
        )
        while not may(cluster_with_roles, role, "list", requests):
            pass
        assert not may(cluster_with_roles, role, "create", requests), "creating requests is a scheduler's right"
