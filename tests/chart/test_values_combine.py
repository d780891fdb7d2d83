"""Values that several files set together, and those that platforms need of every pod."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from bowline.localcluster.chart import ChartRelease
from bowline.localcluster.errors import CommandError
from bowline.localcluster.helm import Helm
from bowline.plugins.gpu_sharing.config import GpuSharingConfig
from tests.chart.rendering import CHART, NAMESPACE, RELEASE, REQUIRED, Chart, Rendered

PRESETS = CHART / "presets"


def plugins(manifests: Rendered) -> dict[str, Any]:
    """The plugins of the rendered configuration, by name; each once."""
    entries = yaml.safe_load(manifests.config_text())["plugins"]
    by_name = {plugin["name"]: plugin for plugin in entries}
    assert len(by_name) == len(entries)
    return by_name


def render(helm: Helm, folder: Path, *layers: Path | dict[str, Any]) -> Rendered:
    """Render with files of values, the last one first in precedence."""
    files = []
    for index, layer in enumerate(layers):
        path = layer if isinstance(layer, Path) else folder / f"{index}.yaml"
        if not isinstance(layer, Path):
            path.write_text(yaml.safe_dump(layer))
        files.append(path)
    return Rendered(helm.template(ChartRelease(RELEASE, CHART, NAMESPACE, values_files=files, set_values=REQUIRED)))


def test_plugins_of_several_files_combine_with_the_openshift_preset(helm_command: Helm, tmp_path: Path) -> None:
    mine = {
        "config": {"plugins": {"node_fit": {"enabled": True}, "gpu_sharing": {"args": {"scaleAdjustNamespace": "a"}}}}
    }
    team = {"config": {"plugins": {"licence": {"args": {"server": "b"}}, "node_fit": {"enabled": False}}}}
    by_name = plugins(render(helm_command, tmp_path, PRESETS / "openshift.yaml", mine, team))
    assert by_name["node_fit"] == {"name": "node_fit", "enabled": False}
    assert by_name["licence"] == {"name": "licence", "args": {"server": "b"}}
    arguments = by_name["gpu_sharing"]["args"]
    assert arguments["scaleAdjustNamespace"] == "a"
    assert set(arguments["reservationPodSecurityContext"]) == {"runAsNonRoot", "seccompProfile"}


def test_a_list_of_plugins_keeps_the_openshift_preset_of_reservation_pods(helm_command: Helm, tmp_path: Path) -> None:
    mine = {"config": {"plugins": [{"name": "node_fit"}]}}
    by_name = plugins(render(helm_command, tmp_path, PRESETS / "openshift.yaml", mine))
    assert set(by_name) == {"node_fit", "gpu_sharing"}
    context = by_name["gpu_sharing"]["args"]["reservationPodSecurityContext"]
    assert not {"runAsUser", "runAsGroup"} & set(context)


def test_the_contexts_of_reservation_pods_are_the_plugins_defaults(manifests: Rendered) -> None:
    arguments = plugins(manifests)["gpu_sharing"]["args"]
    default = GpuSharingConfig(reservation_priority_class_name="bowline-shares")
    assert GpuSharingConfig.model_validate(arguments) == default


def test_a_context_is_removed_by_null_and_replaced_as_a_whole_by_the_plugins_argument(chart: Chart) -> None:
    none = chart.render({"reservation": {"podSecurityContext": None, "containerSecurityContext": None}})
    arguments = plugins(none)["gpu_sharing"]["args"]
    assert arguments["reservationPodSecurityContext"] == arguments["reservationContainerSecurityContext"] == {}
    plugin_values = {"gpu_sharing": {"args": {"reservationPodSecurityContext": {"runAsNonRoot": True}}}}
    arguments = plugins(chart.render({"config": {"plugins": plugin_values}}))["gpu_sharing"]["args"]
    assert arguments["reservationPodSecurityContext"] == {"runAsNonRoot": True}


@pytest.mark.parametrize(
    ("plugin_values", "words"),
    [
        pytest.param({"node_fit": {"enable": True}}, "/config/plugins/node_fit", id="a misspelt key"),
        pytest.param({"node_fit": True}, "/config/plugins/node_fit", id="a switch without its key"),
        pytest.param("node_fit", "/config/plugins", id="a name alone"),
    ],
)
def test_plugins_of_another_form_are_refused(chart: Chart, plugin_values: Any, words: str) -> None:
    with pytest.raises(CommandError, match=words):
        chart.render({"config": {"plugins": plugin_values}})


def pods(manifests: Rendered) -> list[Any]:
    """The specs of all pods of the release, those of its Jobs and of `helm test` included."""
    templates = [owner["spec"]["template"]["spec"] for owner in manifests.of_kind("Deployment", "Job")]
    return [*templates, *(pod["spec"] for pod in manifests.of_kind("Pod"))]


def test_node_selectors_and_tolerations_are_common_and_a_process_adds_its_own(chart: Chart) -> None:
    taint = {"key": "infra", "operator": "Exists"}
    own = {"key": "webhook", "operator": "Exists"}
    values = {
        "nodeSelector": {"pool": "infra", "arch": "amd64"},
        "tolerations": [taint],
        "webhook": {"nodeSelector": {"pool": "webhook"}, "tolerations": [own]},
    }
    manifests = chart.render(values)
    assert len(pods(manifests)) == 5
    for spec in pods(manifests):
        assert spec["nodeSelector"]["arch"] == "amd64"
        assert taint in spec["tolerations"]
    webhook = manifests.get("Deployment", "bowline-webhook")["spec"]["template"]["spec"]
    assert webhook["nodeSelector"] == {"pool": "webhook", "arch": "amd64"}
    assert webhook["tolerations"] == [taint, own]


def test_probes_and_disruption_budgets_are_values(chart: Chart, manifests: Rendered) -> None:
    values = {
        "webhook": {
            "probes": {"startup": {"failureThreshold": 300}, "liveness": {"timeoutSeconds": 9}},
            "podDisruptionBudget": {"maxUnavailable": "50%"},
        },
        "reconciler": {"podDisruptionBudget": {"enabled": False}},
    }
    changed_manifests = chart.render(values)
    (container,) = changed_manifests.get("Deployment", "bowline-webhook")["spec"]["template"]["spec"]["containers"]
    (before,) = manifests.get("Deployment", "bowline-webhook")["spec"]["template"]["spec"]["containers"]
    assert container["startupProbe"] == before["startupProbe"] | {"failureThreshold": 300}
    assert container["livenessProbe"] == before["livenessProbe"] | {"timeoutSeconds": 9}
    assert container["readinessProbe"] == before["readinessProbe"]
    (budget,) = changed_manifests.of_kind("PodDisruptionBudget")
    assert (budget["metadata"]["name"], budget["spec"]["maxUnavailable"]) == ("bowline-webhook", "50%")


def test_egress_is_limited_only_where_it_is_listed(chart: Chart) -> None:
    open_ = chart.render({"networkPolicy": {"enabled": True}}).of_kind("NetworkPolicy")
    assert [policy["spec"]["policyTypes"] for policy in open_] == [["Ingress"], ["Ingress"]]
    rule = {"to": [{"ipBlock": {"cidr": "10.0.0.0/28"}}], "ports": [{"port": 6443}]}
    limited = chart.render({"networkPolicy": {"enabled": True, "egress": [rule]}}).of_kind("NetworkPolicy")
    assert [policy["spec"]["egress"] for policy in limited] == [[rule], [rule]]
    assert [policy["spec"]["policyTypes"] for policy in limited] == [["Ingress", "Egress"]] * 2
