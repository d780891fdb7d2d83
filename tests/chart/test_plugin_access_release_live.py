"""A release with the values that `bowline plugin access` prints: upgraded to another version's, and uninstalled."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import yaml

from bowline import Access, AccessRule, AdmissionInfo, AdmissionPlugin, BindingPlugin, FieldError, Object
from bowline.framework.config import Settings
from bowline.framework.plugin import PluginConfig
from bowline.localcluster.api import ApiClient
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline_cli.plugin_access import values_of
from tests.chart.policies import DRY, RECONCILER
from tests.chart.rendering import Chart
from tests.chart.test_lifecycle_live import CRD, HOOKS, Release
from tests.waiting import wait_until

ALLOWED, FORBIDDEN, DENIED = "", "cannot create resource", "only ConfigMaps of shares"
RBAC, ADMISSION = "/apis/rbac.authorization.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1"
KINDS = [
    *(f"{RBAC}/{plural}" for plural in ("clusterroles", "clusterrolebindings", "roles", "rolebindings")),
    f"{ADMISSION}/validatingadmissionpolicies",
    f"{ADMISSION}/validatingadmissionpolicybindings",
    f"{ADMISSION}/validatingwebhookconfigurations",
    f"{ADMISSION}/mutatingwebhookconfigurations",
]
WRITES = [
    ("seats", "services", "seat-1"),
    ("chairs", "services", "chair-1"),
    ("default", "configmaps", "seat-1"),
    ("default", "configmaps", "chair-1"),
]


class Seats(AdmissionPlugin, BindingPlugin):
    """The plugin before the upgrade."""

    name = "seats"
    access = Access(
        rules=(
            AccessRule("services", ("create",), namespace="seats", name_prefix="seat-"),
            AccessRule("configmaps", ("create",), name_prefix="seat-"),
        ),
        reviewed_annotations=("seats.example/count",),
    )

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        return ()


class Chairs(Seats):
    """Its next version, which needs something else."""

    access = Access(
        rules=(
            AccessRule("services", ("create",), namespace="chairs", name_prefix="chair-"),
            AccessRule("configmaps", ("create",), name_prefix="chair-"),
        ),
        reviewed_annotations=("chairs.example/count",),
    )


@pytest.fixture
def release(chart: Chart, chart_cluster: Cluster) -> Iterator[Release]:
    """Nothing is installed before or after."""
    release = Release(chart.helm, chart_cluster)
    for namespace in ("seats", "chairs"):
        chart_cluster.make_namespace(namespace)
    yield release
    if owned(chart_cluster):
        release.uninstall()
    chart_cluster.api.delete(CRD)
    chart_cluster.kubectl("wait", "--for=delete", "--timeout=100s", "crd/bindrequests.scheduling.run.ai")


def install(release: Release, plugin: type[Seats]) -> None:
    values: dict[str, Any] = yaml.safe_load(values_of([plugin(PluginConfig(), Settings())]))
    release.install(**values)


def verdict(client: ApiClient, namespace: str, plural: str, name: str) -> str:
    """Return why the object may not be created, empty if it may."""
    spec = {"spec": {"ports": [{"port": 80}]}} if plural == "services" else {}
    try:
        client.post(f"/api/v1/namespaces/{namespace}/{plural}{DRY}", {"metadata": {"name": name}, **spec})
    except LocalApiError as error:
        return next((why for why in (DENIED, FORBIDDEN) if why in str(error)), str(error))
    return ALLOWED


def verdicts(client: ApiClient) -> list[str]:
    return [verdict(client, *write) for write in WRITES]


def reviewed(cluster: Cluster) -> set[str]:
    """Return which of the two annotations a change of a pod is reviewed for."""
    hooks = str(cluster.api.get(f"{HOOKS}/bowline-webhook")["webhooks"])
    return {key for key in ("seats.example/count", "chairs.example/count") if key in hooks}


def owned(cluster: Cluster) -> list[str]:
    """Return the rights, policies and hooks of the release, in any namespace."""
    items = ((path, item["metadata"]) for path in KINDS for item in cluster.api.get(path)["items"])
    return [f"{path}/{meta['name']}" for path, meta in items if meta["name"].startswith("bowline")]


def test_an_upgrade_replaces_what_a_plugin_may_do_and_an_uninstall_ends_it(release: Release) -> None:
    cluster = release.cluster
    reconciler = cluster.api_as(RECONCILER)
    try:
        install(release, Seats)
        wait_until(
            lambda: verdicts(reconciler) == [ALLOWED, FORBIDDEN, ALLOWED, DENIED], "what the first version declares"
        )
        assert reviewed(cluster) == {"seats.example/count"}
        install(release, Chairs)
        wait_until(
            lambda: verdicts(reconciler) == [FORBIDDEN, ALLOWED, DENIED, ALLOWED], "what the second version declares"
        )
        assert reviewed(cluster) == {"chairs.example/count"}
        assert owned(cluster)
        release.uninstall()
        wait_until(lambda: verdicts(reconciler) == [FORBIDDEN] * len(WRITES), "no rights after the uninstall")
        assert owned(cluster) == []
    finally:
        reconciler.close()
