"""How a share gets its device on a real node: by environment, by CDI, and with an incomplete CDI specification.

RuntimeClass `nvidia` has a stand-in for NVIDIA's container runtime: it interprets NVIDIA_VISIBLE_DEVICES, and rejects
a container whose CDI name is in no specification.
"""

import json
from collections.abc import Iterator

import pytest

from bowline.api import names
from tests.localnode.cluster import NAMESPACE, RELEASE, NodeCluster, install_chart
from tests.node.steps import NodeLive
from tests.node.test_pods import UUID_PREFIX
from tests.plugins.test_operator_modes import CDI, CRD, CRDS, POLICIES, POLICY

GPUS = 4


@pytest.fixture(scope="module")
def gpu_operator(node: NodeCluster) -> Iterator[None]:
    """NVIDIA's GPU operator, as far as its ClusterPolicy shows that the runtime takes devices by CDI."""
    api = node.cluster.api
    api.post(CRDS, CRD)
    node.cluster.wait_established("clusterpolicies.nvidia.com")
    api.post(POLICIES, {**POLICY, "spec": CDI})
    yield
    api.delete(f"{CRDS}/clusterpolicies.nvidia.com")


@pytest.fixture(scope="module")
def by_cdi(node: NodeCluster, gpu_operator: None) -> Iterator[None]:
    """The device plugin names devices by CDI, and a reconciler that starts so detects it; as before afterwards."""
    install_chart(node, {"config.gpuSharing.agentTimeout": "5s"})
    node.layout.by_cdi.touch()
    yield
    node.layout.by_cdi.unlink()
    _specification(node, 0)
    install_chart(node)


def _specification(node: NodeCluster, devices: int) -> None:
    """Write the node's CDI specification with so many devices; none removes it."""
    path = node.layout.cdi_specs / "nvidia.json"
    if not devices:
        path.unlink(missing_ok=True)
        return
    uuids = [f"{UUID_PREFIX}{index:012d}" for index in range(devices)]
    # The fake NVML library reads the variable.
    entries = [{"name": uuid, "containerEdits": {"env": [f"{names.VISIBLE_DEVICES}={uuid}"]}} for uuid in uuids]
    spec = {"cdiVersion": "0.5.0", "kind": names.CDI_GPU_KIND, "devices": entries}
    path.with_suffix(".new").write_text(json.dumps(spec))
    path.with_suffix(".new").rename(path)


def _reserved(live: NodeLive) -> str:
    (reservation,) = json.loads(live.reservations())
    return str(reservation["metadata"]["annotations"][names.RESERVED_DEVICE])


def test_share_sees_its_device_by_the_environment(live: NodeLive) -> None:
    live.run_pod("share", {"gpu-fraction": "0.5"})
    live.bind_share("share", "0.50", "access-env")
    live.running("share")
    environment = live.environment("share")
    assert environment[names.VISIBLE_DEVICES] == environment["FAKE_GPU_DEVICES"] == _reserved(live)


@pytest.mark.usefixtures("gpu_operator")
def test_cdi_is_detected_from_the_cluster_policy(node: NodeCluster, live: NodeLive) -> None:
    numbers = iter(range(100))

    def has_cdi_name() -> bool:
        name = f"detect-{next(numbers)}"
        live.run_pod(name, {"gpu-fraction": "0.5"})
        live.bind_share(name, "0.50", name)
        live.phase(name, "Succeeded")
        prefix = live.pod(name)["metadata"]["annotations"][names.SHARED_GPU_CONFIGMAP]
        path = f"/api/v1/namespaces/{live.namespace}/configmaps/{prefix}-0"
        devices = str(live.cluster.api.get(path)["data"][names.VISIBLE_DEVICES])
        live.kubectl("delete", "pod", name, "--grace-period=0", "--force")
        return devices.startswith(names.CDI_GPU_KIND)

    try:
        live.until("a share gets a CDI name", has_cdi_name, 150.0)
    except AssertionError:
        logs = node.cluster.kubectl("logs", f"deployment/{RELEASE}-reconciler", f"--namespace={NAMESPACE}").stdout
        raise AssertionError("\n".join(line for line in logs.splitlines() if "nvidia" in line)) from None


@pytest.mark.usefixtures("by_cdi")
def test_share_sees_its_device_by_cdi(node: NodeCluster, live: NodeLive) -> None:
    _specification(node, GPUS)
    live.run_pod("share", {"gpu-fraction": "0.5"})
    live.bind_share("share", "0.50", "access-cdi")
    live.running("share")
    environment = live.environment("share")
    assert environment["FAKE_GPU_DEVICES"] == _reserved(live)
    assert environment[names.VISIBLE_DEVICES] == f"{names.CDI_GPU_KIND}={_reserved(live)}"


@pytest.mark.usefixtures("by_cdi")
def test_incomplete_cdi_specification_is_named_before_the_share_is_bound(node: NodeCluster, live: NodeLive) -> None:
    _specification(node, 0)
    live.run_pod("share", {"gpu-fraction": "0.5"})
    live.bind_share("share", "0.50", "access-incomplete", backoffLimit=0)
    status = live.phase("share", "Failed", "Succeeded")["status"]
    assert status["phase"] == "Failed"
    assert "CDI" in status["reason"], status["reason"]
    assert names.CDI_GPU_KIND in status["reason"]
    pod = live.pod("share")
    assert "nodeName" not in pod["spec"]
    condition = live.until(
        "the pod has the condition",
        lambda: next((c for c in live.pod("share")["status"].get("conditions", ()) if c["type"] == "PodBound"), None),
    )
    assert condition["status"] == "False"
    assert "CDI" in condition["message"]
