"""Command lines of the control plane: how a spec changes them."""

from pathlib import Path

import pytest

from bowline.localcluster.flags import Layout, Ports, apiserver_args, controller_manager_args, etcd_args, kwok_args
from bowline.localcluster.nodes import node_object
from bowline.localcluster.spec import CONTROLLERS, ClusterSpec

LAYOUT = Layout(Path("/data"))
PORTS = Ports(3, 4)


def test_everything_listens_on_loopback_only() -> None:
    assert "--bind-address=127.0.0.1" in apiserver_args(ClusterSpec(), LAYOUT, PORTS)
    assert "--server-address=127.0.0.1:4" in kwok_args(LAYOUT, PORTS)


def test_etcd_listens_only_on_sockets_in_the_clusters_folder() -> None:
    listening = [argument for argument in etcd_args(LAYOUT) if argument.startswith("--listen-")]
    assert listening == [
        "--listen-client-urls=unix:///data/etcd.sock",
        "--listen-peer-urls=unix:///data/etcd-peer.sock",
    ]
    assert "--etcd-servers=unix:///data/etcd.sock" in apiserver_args(ClusterSpec(), LAYOUT, PORTS)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(ClusterSpec(), "--disable-admission-plugins=TaintNodesByCondition,ServiceAccount", id="default"),
        pytest.param(
            ClusterSpec(service_account_admission=True),
            "--disable-admission-plugins=TaintNodesByCondition",
            id="with ServiceAccounts as on a real cluster",
        ),
        pytest.param(ClusterSpec(audit="Request"), "--audit-log-path=/data/audit.log", id="with an audit log"),
        pytest.param(
            ClusterSpec(runtime_config=("a/v1=true", "b=1")), "--runtime-config=a/v1=true,b=1", id="more APIs"
        ),
        pytest.param(ClusterSpec(feature_gates=("A=true",)), "--feature-gates=A=true", id="a feature gate"),
        pytest.param(ClusterSpec(apiserver_args=("--v=4",)), "--v=4", id="any argument"),
    ],
)
def test_a_spec_shows_in_the_api_servers_arguments(spec: ClusterSpec, expected: str) -> None:
    assert expected in apiserver_args(spec, LAYOUT, PORTS)


def test_by_default_no_audit_log_is_written_and_no_api_is_switched() -> None:
    arguments = " ".join(apiserver_args(ClusterSpec(), LAYOUT, PORTS))
    assert not any(word in arguments for word in ("--audit", "--runtime-config", "--feature-gates"))


def test_service_account_controllers_enable_their_admission_plugin() -> None:
    assert ClusterSpec().all_controllers() == CONTROLLERS
    assert "serviceaccount-controller" in ClusterSpec(service_account_admission=True).all_controllers()
    assert ClusterSpec(service_account_admission=True, controllers=()).all_controllers() == ()


def test_the_controllers_rate_is_settable() -> None:
    assert "--kube-api-qps=7" in controller_manager_args(ClusterSpec(controller_qps=7), LAYOUT)


def test_a_node_without_gpus_carries_no_gpu_labels() -> None:
    node = node_object("cpu-0", gpus=0)
    assert not any(label.startswith("nvidia.com") for label in node["metadata"]["labels"])
    assert "nvidia.com/gpu" not in node["status"]["capacity"]


def test_a_gpu_node_has_labels_for_count_and_memory() -> None:
    node = node_object("gpu-0", gpus=4, labels={"zone": "a"})
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "4"
    assert (
        node["metadata"]["labels"] | {"nvidia.com/gpu.count": "4", "nvidia.com/gpu.memory": "81920", "zone": "a"}
        == (node["metadata"]["labels"])
    )
