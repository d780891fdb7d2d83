"""The Job that checks the configuration, as rendered; test_check_live.py runs it."""

from typing import Any

import pytest

from tests.chart.presets import EVERYTHING
from tests.chart.rendering import Chart, Rendered

UNINSTALL = (("Job", "bowline-uninstall"), ("Deployment", "bowline-reconciler"))


def job_pod(manifests: Rendered) -> Any:
    return manifests.get("Job", "bowline-check")["spec"]["template"]["spec"]


@pytest.mark.parametrize("values", [pytest.param({}, id="default"), pytest.param(EVERYTHING, id="every value")])
def test_the_job_runs_the_command_lines_of_the_processes(chart: Chart, values: dict[str, Any]) -> None:
    manifests = chart.render(values)
    pod = job_pod(manifests)
    assert [container["name"] for container in pod["containers"]] == ["webhook", "reconciler"]
    for container in pod["containers"]:
        template = manifests.get("Deployment", f"bowline-{container['name']}")["spec"]["template"]["spec"]
        (process,) = template["containers"]
        assert container["args"] == [*process["args"], "--check"]
        for field in ("image", "imagePullPolicy", "command", "env", "resources", "securityContext"):
            assert container[field] == process[field]
        assert template.get("imagePullSecrets") == pod.get("imagePullSecrets")


def test_the_job_needs_no_object_that_is_installed_after_it(chart: Chart) -> None:
    manifests = chart.render({"webhook": {"tls": {"mode": "cert-manager", "clientCASecret": "callers"}}})
    pod = job_pod(manifests)
    assert pod["volumes"] == [{"name": "config", "configMap": {"name": "bowline-check"}}]
    assert {mount["name"] for container in pod["containers"] for mount in container["volumeMounts"]} == {"config"}
    document = manifests.get("ConfigMap", "bowline-check")
    assert document["data"]["config.yaml"].strip() == manifests.config_text().strip()
    weights = [
        int(obj["metadata"]["annotations"].get("helm.sh/hook-weight", 0))
        for obj in (document, manifests.get("Job", "bowline-check"))
    ]
    assert weights == sorted(set(weights)), "the ConfigMap precedes the Job"


def test_the_job_has_no_access_to_the_api_server(manifests: Rendered) -> None:
    pod = job_pod(manifests)
    assert pod["serviceAccountName"] == "default"
    assert pod["automountServiceAccountToken"] is False


def test_the_job_is_part_of_no_release(manifests: Rendered) -> None:
    """An object with the hook annotation is neither upgraded nor uninstalled with the release."""
    for kind in ("Job", "ConfigMap"):
        annotations = manifests.get(kind, "bowline-check")["metadata"]["annotations"]
        assert annotations["helm.sh/hook"] == "pre-install,pre-upgrade"
        assert annotations["helm.sh/hook-delete-policy"] == "before-hook-creation,hook-succeeded"
    for job in manifests.of_kind("Job"):
        labels = job["spec"]["template"]["metadata"]["labels"]
        for deployment in manifests.of_kind("Deployment"):
            assert not deployment["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_the_uninstall_is_the_reconciler_with_one_more_argument(chart: Chart) -> None:
    manifests = chart.render({"reconciler": {"extraArgs": ["--x"]}})
    job, deployment = (manifests.get(kind, name) for kind, name in UNINSTALL)
    pod, template = job["spec"]["template"]["spec"], deployment["spec"]["template"]["spec"]
    (container,), (reconciler,) = pod["containers"], template["containers"]
    assert container["args"] == [*reconciler["args"], "--uninstall=bowline-reconciler"]
    assert pod["serviceAccountName"] == template["serviceAccountName"]
    (rule,) = manifests.get("Role", "bowline-uninstall")["rules"]
    assert (rule["resources"], rule["resourceNames"], rule["verbs"]) == (
        ["deployments/scale"],
        ["bowline-reconciler"],
        ["patch"],
    )
    for kind in ("Job", "Role", "RoleBinding"):
        assert manifests.get(kind, "bowline-uninstall")["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete"
