"""The rights of the two ServiceAccounts and of users, evaluated by the API server."""

from collections.abc import Iterator

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
HERE, RESERVED = {"namespace": NAMESPACE}, {"namespace": "kai-resource-reservation"}
# What a name and a namespace limit: the API server's part. test_rights.py has every rule.
MAY: list[tuple[str, str, str, dict[str, str], bool]] = [
    (WEBHOOK, "patch", ADMISSION, {"name": WEBHOOK}, True),
    (WEBHOOK, "patch", ADMISSION, {"name": "other"}, False),
    (WEBHOOK, "create", ADMISSION, {}, False),
    (WEBHOOK, "list", ADMISSION, {}, False),
    (WEBHOOK, "get", ":secrets", HERE, False),
    (WEBHOOK, "update", ":secrets", {"name": "bowline-ca", **HERE}, True),
    (WEBHOOK, "get", ":secrets", {"name": "bowline-ca"}, False),
    (WEBHOOK, "create", ":secrets", HERE, False),
    (WEBHOOK, "patch", MUTATING, {"name": WEBHOOK}, True),
    (WEBHOOK, "patch", POLICIES, {"name": "x"}, False),
    (WEBHOOK, "get", ":pods", {}, False),
    (RECONCILER, "create", ":pods", {}, False),
    (RECONCILER, "delete", ":pods", {}, False),
    (RECONCILER, "delete", ":pods", RESERVED, True),
    (RECONCILER, "create", f"{names.GROUP}:bindrequests", {}, False),
    (RECONCILER, "delete", f"{names.GROUP}:bindrequests", {}, True),
    (RECONCILER, "patch", f"{names.GROUP}:bindrequests/status", {}, True),
    (RECONCILER, "create", "events.k8s.io:events", {}, True),
    (RECONCILER, "get", ":configmaps", {"namespace": "kube-system"}, True),
    (RECONCILER, "create", LEASES, HERE, True),
    (RECONCILER, "create", LEASES, {}, False),
    (RECONCILER, "update", LEASES, {"name": RECONCILER, **HERE}, True),
    (RECONCILER, "update", LEASES, {"name": "other", **HERE}, False),
    (RECONCILER, "update", LEASES, {"name": RECONCILER}, False),
    (RECONCILER, "get", ":secrets", HERE, False),
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
    wait_until(lambda: all(held(chart_cluster, *case[:4]) for case in MAY if case[4]), "the rights are in force")
    yield chart_cluster
    chart_cluster.kubectl("delete", "-f", "-", input=text)


def held(cluster: Cluster, account: str, verb: str, resource: str, where: dict[str, str]) -> bool:
    """Return whether the account has the right."""
    return may(cluster, f"system:serviceaccount:{NAMESPACE}:{account}", verb, resource, **where)


def test_the_accounts_may(cluster_with_roles: Cluster) -> None:
    assert [case for case in MAY if held(cluster_with_roles, *case[:4]) is not case[4]] == []


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
