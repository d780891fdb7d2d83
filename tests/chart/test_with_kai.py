"""The commands of docs/with-kai-scheduler.md: the real Helm and API server, objects as KAI-Scheduler applies them.

KAI-Scheduler's chart, operator and images are not run: the test does to the API objects what they would do.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from bowline.api import names
from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.helm import HelmCli
from bowline.localcluster.spec import ClusterSpec
from tests.api.samples import bind_request, spec
from tests.chart.presets import LOCAL
from tests.chart.rendering import CHART, merged
from tests.documents import commands, run
from tests.reconciler.test_foreign_crd import PRESERVE, THEIRS
from tests.waiting import wait_until

COMMANDS = [command.text for command in commands("docs/with-kai-scheduler.md")]
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/bindrequests.scheduling.run.ai"
CONFIG = "/apis/kai.scheduler/v1/namespaces/kai-scheduler/configs/kai-config"
DEPLOYMENTS = "/apis/apps/v1/namespaces/{}/deployments"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
REQUESTS = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}"
TOPOLOGIES = "/apis/kai.scheduler/v1alpha1/topologies"
RESERVATIONS = "/api/v1/namespaces/kai-resource-reservation"


def foreign_crd(plural: str, kind: str, version: str, scope: str) -> dict[str, Any]:
    schema = {"openAPIV3Schema": {"type": "object", "properties": {"spec": PRESERVE}}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.kai.scheduler"},
        "spec": {
            "group": "kai.scheduler",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "scope": scope,
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }


CRDS = [
    THEIRS,
    foreign_crd("configs", "Config", "v1", "Namespaced"),
    foreign_crd("topologies", "Topology", "v1alpha1", "Cluster"),
]


@dataclass(frozen=True, slots=True)
class Page:
    """The page's commands, run in a folder with the chart and a file of values."""

    cluster: Cluster
    helm: HelmCli
    folder: Path

    def run(self, command: str) -> str:
        """Run a command as a user would. Fails with its output."""
        tools = (self.helm.binary.parent, self.cluster.assets.path(Tool.KUBECTL).parent)
        return run(command, self.cluster.kubeconfig, *tools, folder=self.folder)

    def apply_as_kai(self, *objects: dict[str, Any]) -> None:
        """Apply as the Job of KAI-Scheduler's chart does."""
        text = yaml.safe_dump_all(objects)
        self.cluster.kubectl("apply", "--server-side=true", "--force-conflicts", "-f", "-", input=text)

    def has_conditions(self) -> bool:
        """Return whether the stored CRD is Bowline's."""
        (version,) = self.cluster.api.get(CRD)["spec"]["versions"]
        return "conditions" in version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]


def deployment(name: str) -> dict[str, Any]:
    labels = {"app": name}
    container = {"name": name, "image": f"registry.example/{name}"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


@pytest.fixture
def page(helm_command: HelmCli, tmp_path: Path) -> Iterator[Page]:
    """The page beside KAI-Scheduler's objects."""
    (tmp_path / "charts").mkdir()
    (tmp_path / "charts" / "bowline").symlink_to(CHART)
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(merged(LOCAL, {"image": {"registry": "registry.example"}})))
    with Cluster.start(ClusterSpec(kwok=False)) as cluster:
        page = Page(cluster, helm_command, tmp_path)
        page.apply_as_kai(*CRDS)
        for crd in CRDS:
            cluster.wait_established(crd["metadata"]["name"])
        for namespace in ("kai-scheduler", "kai-resource-reservation"):
            cluster.make_namespace(namespace)
        cluster.api.post(f"{RESERVATIONS}/serviceaccounts", {"metadata": {"name": "kai-resource-reservation"}})
        enabled = {name: {"service": {"enabled": True}} for name in ("binder", "admission")}
        cluster.api.post(CONFIG.rpartition("/")[0], config(enabled))
        for name in enabled:
            cluster.api.post(DEPLOYMENTS.format("kai-scheduler"), deployment(name))
        yield page


def config(spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "kai.scheduler/v1", "kind": "Config", "metadata": {"name": "kai-config"}, "spec": spec}


def topology(*levels: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "kai.scheduler/v1alpha1",
        "kind": "Topology",
        "metadata": {"name": "racks"},
        "spec": {"levels": list(levels)},
    }


def test_the_commands_install_upgrade_and_lead_back(page: Page) -> None:
    api = page.cluster.api
    install, kai_upgrade, patch, wait, start, upgrade, wait_back, uninstall, label = COMMANDS
    assert "kai-scheduler --version" in kai_upgrade
    assert "--set binder.enabled=false --set admission.enabled=false" in kai_upgrade

    # Install; the second time as after a failure.
    page.run(install)
    page.run(install)
    assert page.has_conditions()
    api.post(REQUESTS, bind_request("kept", spec()))
    devices = f"{POLICIES}/bowline-devices"
    assert "system:serviceaccount:kai-scheduler:binder" in str(api.get(devices)["spec"]["matchConditions"])
    reconcilers = f"{DEPLOYMENTS.format('bowline-system')}/bowline-reconciler"
    assert api.get(reconcilers)["spec"]["replicas"] == 0
    page.run(patch)
    assert not any(component["service"]["enabled"] for component in api.get(CONFIG)["spec"].values())
    # What the operator does then.
    for name in ("binder", "admission"):
        api.delete(f"{DEPLOYMENTS.format('kai-scheduler')}/{name}")
    api.delete(f"{RESERVATIONS}/serviceaccounts/kai-resource-reservation")
    page.run(wait)
    page.run(start)
    assert api.get(reconcilers)["spec"]["replicas"] == 2
    assert "kai-scheduler:binder" not in str(api.get(devices)["spec"]["matchConditions"])
    assert api.get(f"{RESERVATIONS}/serviceaccounts/bowline-gpu-agent")

    # KAI-Scheduler is upgraded.
    page.apply_as_kai(THEIRS)
    assert not page.has_conditions()
    page.run(upgrade)
    assert page.has_conditions()

    # The way back.
    api.post(DEPLOYMENTS.format("kai-scheduler"), deployment("admission"))
    page.run(wait_back)
    page.run(uninstall)
    page.run(label)
    labels = api.get(RESERVATIONS)["metadata"]["labels"]
    assert "pod-security.kubernetes.io/enforce" not in labels
    assert api.get(f"{REQUESTS}/kept")
    assert not [item for item in api.get(POLICIES)["items"] if item["metadata"]["name"].startswith("bowline")]
    page.apply_as_kai(THEIRS)


def test_topologies_are_validated_without_kais_admission(page: Page) -> None:
    api = page.cluster.api
    page.run(COMMANDS[0])
    valid = topology({"nodeLabel": "zone", "alias": "z"}, {"nodeLabel": "rack"})
    invalid = topology({"nodeLabel": "zone", "alias": "z"}, {"nodeLabel": "rack", "alias": "z"})
    label = topology({"nodeLabel": "zone", "alias": "rack"}, {"nodeLabel": "rack"})
    # A policy is effective about a second after it was created.
    wait_until(lambda: denial(page.cluster, invalid), "a denial by the policy")
    assert 'spec.levels[*].alias: "z", "z": each level needs an alias of its own' in denial(page.cluster, invalid)
    assert 'spec.levels[*].alias: "rack": is the nodeLabel of a level' in denial(page.cluster, label)
    api.post(TOPOLOGIES, valid)
    with pytest.raises(LocalApiError, match="each level needs an alias of its own"):
        api.patch(f"{TOPOLOGIES}/racks", {"spec": invalid["spec"]})


def denial(cluster: Cluster, body: dict[str, Any]) -> str:
    """Return why the API server denies the object, without creating it; empty if it does not."""
    try:
        cluster.api.post(f"{TOPOLOGIES}?dryRun=All", body)
    except LocalApiError as error:
        return str(error)
    return ""
