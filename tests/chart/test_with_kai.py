"""The commands of docs/with-kai-scheduler.md: the real Helm and API server, objects as KAI-Scheduler applies them.

KAI-Scheduler's chart, operator and images are not run: the test does to the API objects what they would do.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.helm import Helm
from bowline.localcluster.spec import ClusterSpec
from tests.api.samples import bind_request, spec
from tests.chart.presets import LOCAL
from tests.chart.rendering import merged
from tests.chart.shell import Shell
from tests.documents import commands
from tests.reconciler.test_foreign_crd import PRESERVE, THEIRS
from tests.waiting import wait_until

COMMANDS = [command.text for command in commands("docs/with-kai-scheduler.md")]
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/bindrequests.scheduling.run.ai"
CONFIG = "/apis/kai.scheduler/v1/namespaces/kai-scheduler/configs/kai-config"
DEPLOYMENTS = "/apis/apps/v1/namespaces/{}/deployments"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
RECONCILERS = f"{DEPLOYMENTS.format('bowline-system')}/bowline-reconciler"
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


class Page(Shell):
    """The shell of the page's reader, and what KAI-Scheduler does meanwhile."""

    def apply_as_kai(self, *objects: dict[str, Any]) -> None:
        """Apply as the Job of KAI-Scheduler's chart does."""
        text = yaml.safe_dump_all(objects)
        self.cluster.kubectl("apply", "--server-side=true", "--force-conflicts", "-f", "-", input=text)

    def share_as_kai(self) -> None:
        """Reserve a device as KAI-Scheduler's binder does: a reservation pod, and the label of a pod of a user."""
        assert self.denial_of_a_share() == ""

    def denial_of_a_share(self) -> str:
        """Return why the API server denies KAI-Scheduler's binder a share; empty if it does not."""
        create = ("create", f"--as={BINDER}", "-f", "-")
        completion = self.cluster.kubectl(*create, input=yaml.safe_dump(reservation_pod()), check=False)
        if completion.returncode == 0:
            label = ("label", "pod", "a-user", "--overwrite", "runai-gpu-group=a-group", f"--as={BINDER}")
            completion = self.cluster.kubectl(*label, check=False)
        return completion.stderr

    def assert_namespace_is_kais(self) -> None:
        """Labels and annotations of KAI-Scheduler's chart are on the namespace."""
        metadata, expectation = self.cluster.api.get(RESERVATIONS)["metadata"], NAMESPACE_OF_KAI["metadata"]
        assert metadata["labels"].items() >= expectation["labels"].items()
        assert metadata["annotations"].items() >= expectation["annotations"].items()

    def has_conditions(self) -> bool:
        """Return whether the stored CRD is Bowline's."""
        (version,) = self.cluster.api.get(CRD)["spec"]["versions"]
        return "conditions" in version["schema"]["openAPIV3Schema"]["properties"]["status"]["properties"]


# As its chart creates it, with `namespaceLabels`, as Helm marks it.
NAMESPACE_OF_KAI: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {
        "name": "kai-resource-reservation",
        "labels": {"app.kubernetes.io/managed-by": "Helm", "team": "gpu"},
        "annotations": {
            "meta.helm.sh/release-name": "kai-scheduler",
            "meta.helm.sh/release-namespace": "kai-scheduler",
            "argocd.argoproj.io/sync-options": "Prune=false",
        },
    },
}
BINDER = "system:serviceaccount:kai-scheduler:binder"
# RBAC of KAI-Scheduler's binder is not what is tested.
ADMINISTRATOR = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRoleBinding",
    "metadata": {"name": "kai-binder"},
    "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
    "subjects": [{"kind": "ServiceAccount", "name": "binder", "namespace": "kai-scheduler"}],
}


def reservation_pod() -> dict[str, Any]:
    """A reservation pod as KAI-Scheduler's binder creates it: it has no security context."""
    env = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in (("POD_NAME", "metadata.name"), ("POD_NAMESPACE", "metadata.namespace"))
    ]
    container = {
        "name": "resource-reservation",
        "image": "registry.example/kai-scheduler/resource-reservation:v0.18.1",
        "resources": {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}},
        "env": env,
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": "gpu-reservation-",
            "namespace": "kai-resource-reservation",
            "labels": {"app": "kai-resource-reservation", "runai-gpu-group": "a-group"},
            "annotations": {"karpenter.sh/do-not-disrupt": "true"},
        },
        "spec": {
            "nodeName": "a-node",
            "serviceAccountName": "kai-resource-reservation",
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        },
    }


def deployment(name: str) -> dict[str, Any]:
    labels = {"app": name}
    container = {"name": name, "image": f"registry.example/{name}"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec = {"replicas": 0, "selector": {"matchLabels": labels}, "template": template}
    return {"metadata": {"name": name}, "spec": spec}


@pytest.fixture
def page(helm_command: Helm, tmp_path: Path) -> Iterator[Page]:
    """The page beside KAI-Scheduler's objects."""
    values = merged(LOCAL, {"image": {"registry": "registry.example"}})
    with Cluster.start(ClusterSpec(kwok=False)) as cluster:
        page = Page.at(tmp_path, cluster, helm_command, values)
        page.apply_as_kai(*CRDS)
        for crd in CRDS:
            cluster.wait_established(crd["metadata"]["name"])
        cluster.make_namespace("kai-scheduler")
        page.apply_as_kai(NAMESPACE_OF_KAI, ADMINISTRATOR)
        cluster.api.post(f"{RESERVATIONS}/serviceaccounts", {"metadata": {"name": "kai-resource-reservation"}})
        user_pod = {"metadata": {"name": "a-user"}, "spec": {"containers": [{"name": "main", "image": "x"}]}}
        cluster.api.post("/api/v1/namespaces/default/pods", user_pod)
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


def test_the_commands_install_upgrade_and_lead_back_and_topologies_are_validated_meanwhile(page: Page) -> None:
    install, kai_upgrade, patch, wait, start, restrict, upgrade, wait_back, uninstall, label = COMMANDS
    assert "kai-scheduler --version" in kai_upgrade
    assert "--set binder.enabled=false --set admission.enabled=false" in kai_upgrade
    page.share_as_kai()
    install_beside_the_binder(page, install)
    replace_the_binder(page, patch, wait, start)
    topologies_are_validated_without_kais_admission(page)
    page.run(restrict)
    assert "violates PodSecurity" in page.denial_of_a_share()
    page.assert_namespace_is_kais()

    # KAI-Scheduler is upgraded.
    page.apply_as_kai(THEIRS)
    page.apply_as_kai(NAMESPACE_OF_KAI)
    assert not page.has_conditions()
    page.run(upgrade)
    assert page.has_conditions()
    assert "violates PodSecurity" in page.denial_of_a_share(), "an upgrade of either keeps the label"

    lead_back(page, wait_back, uninstall, label)
    page.apply_as_kai(THEIRS)


def install_beside_the_binder(page: Page, install: str) -> None:
    """Install, the second time as after a failure. KAI-Scheduler's binder shares GPUs meanwhile."""
    api = page.cluster.api
    for _ in range(2):
        page.run(install)
        page.share_as_kai()
    assert page.has_conditions()
    page.assert_namespace_is_kais()
    api.post(REQUESTS, bind_request("kept", spec()))
    assert BINDER in str(api.get(f"{POLICIES}/bowline-devices")["spec"]["matchConditions"])
    assert api.get(RECONCILERS)["spec"]["replicas"] == 0


def replace_the_binder(page: Page, patch: str, wait: str, start: str) -> None:
    """Disable KAI-Scheduler's binder, which shares GPUs until its operator ends it, and start the reconciler."""
    api = page.cluster.api
    page.run(patch)
    page.share_as_kai()
    assert not any(component["service"]["enabled"] for component in api.get(CONFIG)["spec"].values())
    # What the operator does then.
    for name in ("binder", "admission"):
        api.delete(f"{DEPLOYMENTS.format('kai-scheduler')}/{name}")
    api.delete(f"{RESERVATIONS}/serviceaccounts/kai-resource-reservation")
    page.run(wait)
    page.run(start)
    assert api.get(RECONCILERS)["spec"]["replicas"] == 2
    assert BINDER not in str(api.get(f"{POLICIES}/bowline-devices")["spec"]["matchConditions"])
    assert api.get(f"{RESERVATIONS}/serviceaccounts/bowline-gpu-agent")


def lead_back(page: Page, wait: str, uninstall: str, label: str) -> None:
    """Go back; before KAI-Scheduler's binder is started, it may share GPUs."""
    api = page.cluster.api
    api.post(DEPLOYMENTS.format("kai-scheduler"), deployment("admission"))
    page.run(wait)
    page.run(uninstall)
    page.run(label)
    # A deleted policy is effective for about a second.
    wait_until(lambda: not page.denial_of_a_share(), "a share of KAI-Scheduler's binder")
    page.assert_namespace_is_kais()
    assert api.get(f"{REQUESTS}/kept")
    assert not [item for item in api.get(POLICIES)["items"] if item["metadata"]["name"].startswith("bowline")]


def topologies_are_validated_without_kais_admission(page: Page) -> None:
    api = page.cluster.api
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
    for levels in ([{"nodeLabel": "zone", "alias": "z"}, {"nodeLabel": "row"}], [{"nodeLabel": "zone"}]):
        with pytest.raises(LocalApiError, match="only aliases may"):
            api.patch(f"{TOPOLOGIES}/racks", {"spec": {"levels": levels}})
    api.patch(
        f"{TOPOLOGIES}/racks", {"spec": {"levels": [{"nodeLabel": "zone"}, {"nodeLabel": "rack", "alias": "r"}]}}
    )


def denial(cluster: Cluster, body: dict[str, Any]) -> str:
    """Return why the API server denies the object, without creating it; empty if it does not."""
    try:
        cluster.api.post(f"{TOPOLOGIES}?dryRun=All", body)
    except LocalApiError as error:
        return str(error)
    return ""
