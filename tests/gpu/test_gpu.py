"""Two shares of a physical device run CUDA at once; the agent without a driver, and when its device disappears.

The control plane is real and the kubelets are kwok; there is no container runtime. So agent and shares' programs are
started here, each with its pod's environment. What a container runtime does with NVIDIA_VISIBLE_DEVICES is not shown:
the device that CUDA reports is compared with that variable.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bowline.api import names
from bowline.framework.config import GpuSharingSettings
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from bowline.localcluster.podsplace import has_pods_place
from bowline.localcluster.workload import LocalProcess
from tests.gpu.device import Device, device_files, missing_part, nvml_file, read_device, reserve_verdict
from tests.pairs import own_namespace, running_pair
from tests.plugins.leftovers import clean_up
from tests.plugins.sharing import RESERVATIONS, SILENT, Shares

NODE = "gpu-node-0"
TENANT = Path(__file__).with_name("tenant.py")
# What a container has of its image.
_OF_THE_IMAGE = ("PATH", "LD_LIBRARY_PATH")
_OWN_MOUNTS = ("unshare", "--user", "--map-root-user", "--mount")
_HIDING = ("sh", "-c", 'mount --bind /dev/null "$0" && exec "$@"')

_MISSING = missing_part(device_files())
needs_device = pytest.mark.skipif(bool(_MISSING), reason=_MISSING)
needs_own_mounts = pytest.mark.skipif(
    bool(nvml_file()) and not has_pods_place(), reason="this machine permits no mount namespaces (unshare --mount)"
)


@pytest.fixture(scope="module")
def gpu_cluster() -> Iterator[tuple[Cluster, Pair]]:
    """A control plane with one node, and the pair, which gives shares HAMi core's limit too."""
    with running_pair(1, {"config.plugins": [{"name": "hami_core"}]}) as cluster_and_pair:
        yield cluster_and_pair


@pytest.fixture
def shares(gpu_cluster: tuple[Cluster, Pair]) -> Iterator[Shares]:
    """Shares whose agents the test starts, in a namespace of their own."""
    with own_namespace(*gpu_cluster) as live:
        yield Shares(live)
        clean_up(live)


@pytest.fixture
def device(shares: Shares) -> Device:
    """The device, whose memory the node's label states as NVIDIA's feature discovery does."""
    device = read_device()
    labels = {names.NODE_GPU_MEMORY: str(device.total)}
    shares.api.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": labels}})
    return device


@pytest.fixture
def agent(shares: Shares, device: Device) -> Iterator[LocalProcess]:
    """The real agent of two bound shares."""
    for name in ("first", "second"):
        shares.make(name, tolerations=SILENT)
        shares.ask(name, ["device"], node=NODE)
    shares.live.until("the device is being reserved", lambda: len(shares.reservations("device")) == 1)
    agent = shares.run_agent("device", "agent", _OWN_MOUNTS if has_pods_place() else ())
    assert shares.device("device") == device.uuid
    for name in ("first", "second"):
        shares.live.phase(name, "Succeeded")
    yield agent
    agent.stop()


def environment(shares: Shares, name: str) -> dict[str, str]:
    """Return the environment of the pod's container, as a kubelet makes it of pod and ConfigMaps."""
    (container,) = shares.live.pod(name)["spec"]["containers"]
    maps = shares.maps()
    variables: dict[str, str] = {}
    for source in container.get("envFrom") or ():
        variables |= maps[source["configMapRef"]["name"]]
    for entry in container.get("env") or ():
        reference = (entry.get("valueFrom") or {}).get("configMapKeyRef")
        variables[entry["name"]] = maps[reference["name"]][reference["key"]] if reference else entry["value"]
    return variables


def run_tenants(environments: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Run a program in each environment; each runs its kernels once all hold memory of the device."""
    image = {name: os.environ[name] for name in _OF_THE_IMAGE if name in os.environ}
    with ExitStack() as stack:
        tenants: list[Any] = []
        for seed, variables in enumerate(environments):
            argv, env = [sys.executable, str(TENANT), str(seed)], {**image, **variables}
            pipe = subprocess.PIPE
            process = subprocess.Popen(argv, env=env, text=True, stdin=pipe, stdout=pipe)
            tenants.append(stack.enter_context(process))
        assert [tenant.stdout.readline() for tenant in tenants] == ["ready\n"] * len(tenants)
        for tenant in tenants:
            tenant.stdin.write("run\n")
            tenant.stdin.flush()
        return [json.loads(tenant.communicate()[0]) for tenant in tenants]


@needs_device
@pytest.mark.usefixtures("agent")
def test_two_shares_of_a_device_run_at_once(
    shares: Shares, device: Device, capsys: pytest.CaptureFixture[str]
) -> None:
    environments = [environment(shares, name) for name in ("first", "second")]
    assert [variables[names.VISIBLE_DEVICES] for variables in environments] == [device.uuid] * 2
    reserve = GpuSharingSettings().reserved_mebibytes
    limits = {variables[names.DEVICE_MEMORY_LIMIT] for variables in environments}
    assert limits == {f"{(device.total - reserve) // 2}m"}
    reports = run_tenants(environments)
    assert [(report["device"], report["wrong"]) for report in reports] == [(device.uuid, 0)] * 2
    assert max(report["began"] for report in reports) < min(report["ended"] for report in reports)
    fits, verdict = reserve_verdict(device, reserve)
    runs = " and ".join(str(report["runs"]) for report in reports)
    with capsys.disabled():
        # A row of docs/support-matrix.md.
        row = f"| {device.model} | {device.driver} | two shares at once ran {runs} kernels, all right | {verdict} |"
        sys.stdout.write(f"\n{row}\n")
    assert fits, verdict


@needs_device
@needs_own_mounts
def test_a_device_that_disappears_ends_the_agent(shares: Shares, device: Device, agent: LocalProcess) -> None:
    namespaces = ["nsenter", "--preserve-credentials", "--user", "--mount", f"--target={agent.pid}"]
    subprocess.run([*namespaces, "mount", "--bind", "/dev/null", device_files()[0]], check=True)
    # As at its next restart, and at the latest when it compares device and annotation.
    shares.live.until("the agent has ended", lambda: agent.returncode is not None)
    assert (agent.returncode, "GPU" in last_line(agent)) == (1, True), agent.process.tail()
    # The shares that run keep their device.
    assert shares.device("device") == device.uuid
    assert environment(shares, "first")[names.VISIBLE_DEVICES] == device.uuid


@needs_own_mounts
def test_a_missing_driver_is_named_by_the_request(shares: Shares) -> None:
    shares.make("share", tolerations=SILENT)
    shares.ask("share", ["driver"], node=NODE)
    shares.live.until("a device is being reserved", lambda: len(shares.reservations("driver")) == 1)
    library = nvml_file()
    agent = shares.run_agent("driver", "agent", (*_OWN_MOUNTS, *_HIDING, library) if library else ())
    shares.live.until("the agent has ended", lambda: agent.returncode is not None)
    assert agent.returncode == 1, agent.process.tail()
    # As a kubelet states it: the policy of its message is FallbackToLogsOnError.
    (reservation,) = shares.reservations("driver")
    shares.live.until("kwok has started it", lambda: shares.reservations("driver")[0]["status"]["phase"] == "Running")
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": last_line(agent)}}
    container = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": ended, "restartCount": 1}
    container |= {"name": names.RESERVATION_CONTAINER, "ready": False, "image": "agent", "imageID": ""}
    path = f"{RESERVATIONS}/{reservation['metadata']['name']}/status"
    shares.api.patch(path, {"status": {"containerStatuses": [container]}})
    shares.live.until(
        "the request names the cause",
        lambda: "NVML cannot be used" in shares.live.request("share")["status"].get("reason", ""),
    )
    assert "nodeName" not in shares.live.pod("share")["spec"]


def last_line(process: LocalProcess) -> str:
    """Return the last line that the process has written."""
    return process.log.read_text().strip().rpartition("\n")[2]
