"""Install, upgrade and uninstall with the real Helm on the real API server."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from bowline.api import names
from bowline.localcluster.chart import ChartRelease
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.helm import Helm
from tests.api.samples import bind_request, spec
from tests.chart.presets import LOCAL, PRESETS, UNRESTRICTED
from tests.chart.rendering import CHART, NAMESPACE, RELEASE, Chart, merged

CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/bindrequests.scheduling.run.ai"
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
REQUESTS = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}"
BUNDLE = "Q0E="


@dataclass(frozen=True, slots=True)
class Release:
    """The chart's release on one cluster; returns Helm's output."""

    helm: Helm
    cluster: Cluster

    def install(self, **values: Any) -> str:
        """Install, or upgrade what is installed."""
        chart_release = ChartRelease(RELEASE, CHART, NAMESPACE, set_values=merged(LOCAL, values))
        return self.helm.upgrade_install(chart_release, self.cluster.kubeconfig)

    def uninstall(self) -> str:
        """Uninstall."""
        return self.helm.uninstall(RELEASE, NAMESPACE, self.cluster.kubeconfig)


@pytest.fixture
def release(chart: Chart, chart_cluster: Cluster) -> Iterator[Release]:
    """Nothing is installed before or after."""
    release = Release(chart.helm, chart_cluster)
    yield release
    release.uninstall()
    chart_cluster.api.delete(CRD)
    chart_cluster.kubectl("wait", "--for=delete", "--timeout=100s", "crd/bindrequests.scheduling.run.ai")


def exists(cluster: Cluster, path: str) -> bool:
    try:
        cluster.api.get(path)
    except LocalApiError as error:
        if error.status == 404:
            return False
        raise
    return True


@pytest.fixture(scope="module")
def accepted_objects() -> set[str]:
    """The objects, in JSON, that the API server has accepted."""
    return set()


FILES = sorted((CHART / "presets").glob("*.yaml"))


@pytest.mark.parametrize(
    "values",
    [*PRESETS, *UNRESTRICTED, *(pytest.param(yaml.safe_load(file.read_text()), id=file.stem) for file in FILES)],
)
def test_every_object_of_every_preset_is_accepted_as_it_is(
    chart: Chart, chart_cluster: Cluster, accepted_objects: set[str], values: dict[str, Any]
) -> None:
    """Server-side and strict, as Helm 4 installs: a misspelt field or an invalid CEL condition fails here.

    Each object is accepted by itself: what an earlier preset has in the same form is left out.
    """
    objects = [obj for obj in map(json.dumps, chart.render(values).objects) if obj not in accepted_objects]
    assert objects
    command = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    result = chart_cluster.kubectl(*command, input="\n".join(objects))
    assert result.stderr == ""
    assert len(result.stdout.splitlines()) == len(objects)
    accepted_objects.update(objects)


def test_an_installed_chart_serves_and_an_uninstalled_one_leaves_only_requests(release: Release) -> None:
    cluster = release.cluster
    release.install()
    cluster.wait_established("bindrequests.scheduling.run.ai")
    cluster.api.post(REQUESTS, bind_request("kept", spec()))
    release.uninstall()
    assert not exists(cluster, f"{HOOKS}/bowline-webhook")
    assert not exists(cluster, "/apis/rbac.authorization.k8s.io/v1/clusterroles/bowline-reconciler")
    assert not exists(cluster, f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/bowline-webhook")
    assert exists(cluster, f"{REQUESTS}/kept"), "uninstalling deletes no requests"
    release.install()
    assert exists(cluster, f"{REQUESTS}/kept"), "a second install adopts the CRD that the first one left"


def test_an_upgrade_keeps_the_ca_that_the_webhook_wrote(release: Release) -> None:
    """A chart that renders the field would conflict with its owner, or overwrite it and break every call."""
    cluster = release.cluster
    release.install()
    patch = [{"op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": BUNDLE}]
    path = f"{HOOKS}/bowline-webhook?fieldManager={names.FIELD_MANAGER_CABUNDLE}"
    cluster.api.patch(path, patch, "application/json-patch+json")
    for values in ({"log": {"level": "debug"}}, {"webhook": {"url": "https://127.0.0.1:2"}}, {}):
        release.install(**values)
        first = cluster.api.get(f"{HOOKS}/bowline-webhook")["webhooks"][0]["clientConfig"]
        assert first["caBundle"] == BUNDLE
    assert first["url"] == f"{LOCAL['webhook']['url']}/validate/pods"
