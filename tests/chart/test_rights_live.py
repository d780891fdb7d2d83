"""The rights of users about requests, which a controller adds to their roles."""

from collections.abc import Iterator

import pytest
import yaml

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from tests.chart.rendering import Chart


def may(cluster: Cluster, user: str, verb: str, resource: str, *, name: str = "", namespace: str = "default") -> bool:
    """Ask the API server whether the user may do that to ``GROUP:RESOURCE[/SUBRESOURCE]``."""
    group, _, rest = resource.partition(":")
    kind, _, subresource = rest.partition("/")
    attributes = {"verb": verb, "group": group, "resource": kind, "subresource": subresource, "name": name}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": {**attributes, "namespace": namespace}},
    }
    answer = cluster.api.post("/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


@pytest.fixture(scope="module")
def cluster_with_roles(chart: Chart, chart_cluster: Cluster) -> Iterator[Cluster]:
    """The chart's roles and accounts, without the rest of it."""
    roles = chart.render().of_kind("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
    text = yaml.safe_dump_all(roles)
    chart_cluster.kubectl("apply", "--server-side", "-f", "-", input=text)
    yield chart_cluster
    chart_cluster.kubectl("delete", "-f", "-", input=text)


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
