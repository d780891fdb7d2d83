"""Values that combine: plugins of several files, and the names of existing accounts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from tests.chart.rendering import CHART, NAMESPACE, Chart, Rendered

OPENSHIFT = CHART / "presets" / "openshift.yaml"
PROCESSES = ("webhook", "reconciler")


def deployment(manifests: Rendered, process: str) -> Any:
    return manifests.get("Deployment", f"bowline-{process}")["spec"]


def plugins(manifests: Rendered) -> dict[str, Any]:
    """The plugins of the rendered configuration, by name; each once."""
    entries = yaml.safe_load(manifests.config_text())["plugins"]
    by_name = {plugin["name"]: plugin for plugin in entries}
    assert len(by_name) == len(entries)
    return by_name


def test_the_contexts_of_reservation_pods_are_the_plugins_defaults(manifests: Rendered) -> None:
    arguments = plugins(manifests)["gpu_sharing"]["args"]
    default = GpuSharingConfig(reservation_priority_class_name="bowline-shares")
    assert GpuSharingConfig.model_validate(arguments) == default


def test_plugins_of_several_files_combine_and_a_list_replaces_them(chart: Chart, tmp_path: Path) -> None:
    mine: dict[str, Any] = {
        "node_fit": {"enabled": True},
        "gpu_sharing": {
            "args": {"scaleAdjustNamespace": "a", "reservationPodSecurityContext": {"runAsNonRoot": True}}
        },
    }
    team = {"licence": {"args": {"server": "b"}}, "node_fit": {"enabled": False}}
    files = [OPENSHIFT]
    for name, given in (("mine", mine), ("team", team), ("list", [{"name": "checks"}])):
        files.append(tmp_path / f"{name}.yaml")
        files[-1].write_text(yaml.safe_dump({"config": {"plugins": given}}))
    by_name = plugins(chart.render(files=files[:3]))
    assert by_name["node_fit"] == {"name": "node_fit", "enabled": False}
    assert by_name["licence"] == {"name": "licence", "args": {"server": "b"}}
    # A context is one argument, which is replaced as a whole.
    arguments = by_name["gpu_sharing"]["args"]
    assert {name: arguments[name] for name in mine["gpu_sharing"]["args"]} == mine["gpu_sharing"]["args"]
    as_list = plugins(chart.render(files=files))
    assert set(as_list) == {"checks", "gpu_sharing"}
    assert "scaleAdjustNamespace" not in as_list["gpu_sharing"]["args"]


def test_every_reference_to_an_existing_account_has_its_name(chart: Chart, manifests: Rendered) -> None:
    """RBAC, pods, and the policies that restrict the reconciler's account."""
    renamed = chart.render({process: {"serviceAccountName": f"own-{process}"} for process in PROCESSES})
    created = {obj["metadata"]["name"] for obj in renamed.of_kind("ServiceAccount")}
    assert created == {"bowline-gpu-agent", "bowline-test"}
    for process in PROCESSES:
        assert deployment(renamed, process)["template"]["spec"]["serviceAccountName"] == f"own-{process}"
    job = renamed.get("Job", "bowline-uninstall")
    assert job["spec"]["template"]["spec"]["serviceAccountName"] == "own-reconciler"
    subjects = [list(subject_names(each)) for each in (renamed, manifests)]
    assert subjects[0] == [
        name.replace("bowline-webhook", "own-webhook").replace("bowline-reconciler", "own-reconciler")
        for name in subjects[1]
    ]
    user = f"system:serviceaccount:{NAMESPACE}:"
    policies = [
        yaml.safe_dump(each.of_kind("ValidatingAdmissionPolicy"), width=10**6) for each in (renamed, manifests)
    ]
    for process in PROCESSES:
        policies[1] = policies[1].replace(f"{user}bowline-{process}", f"{user}own-{process}")
    assert policies[0] == policies[1]
    assert f"{user}own-reconciler" in policies[0]


def subject_names(manifests: Rendered) -> Iterator[str]:
    for binding in manifests.of_kind("RoleBinding", "ClusterRoleBinding"):
        yield from (subject["name"] for subject in binding["subjects"])
