"""The unmodified chart on a real kubelet: security contexts, tokens, Services and what the image contains."""

import errno
import json
import os
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.errors import CommandError
from bowline.localcluster.ports import free_port
from bowline.localcluster.process import Launch
from tests.localnode.cluster import NAMESPACE, NodeCluster, install_chart
from tests.localnode.settings import PAUSE_IMAGE
from tests.node.steps import NodeLive
from tests.waiting import wait_until

COMPONENTS = ("webhook", "reconciler")
_IMAGE_BYTES = 270_000_000
_FACTS = """
import json, os, pathlib
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
try:
    pathlib.Path("/written").touch()
    written = True
except OSError:
    written = False
print(json.dumps({
    "status": dict(line.split(":", 1) for line in lines),
    "written": written,
    "environment": sorted(os.environ),
}))
"""
_SIZE = """
import os
total = 0
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if not os.path.ismount(os.path.join(folder, name))]
    total += sum(os.lstat(os.path.join(folder, name)).st_size for name in files)
print(total)
"""
_COMPILED = """
import asyncio, importlib.util, json, pathlib
module = pathlib.Path(asyncio.__file__)
print(json.dumps({
    "compiled": pathlib.Path(importlib.util.cache_from_source(str(module))).is_file(),
    "kubernetes": importlib.util.find_spec("kubernetes") is not None,
}))
"""


# A start takes about a second of CPU, so with this limit longer than the liveness probe allows a running process.
_SLOW = {"reconciler.resources": {"requests": {"cpu": "40m"}, "limits": {"cpu": "40m"}}}


def exec_python(node: NodeCluster, component: str, program: str) -> str:
    """Run a Python program in a container of the component; returns its output."""
    target = f"deployment/bowline-{component}"
    return node.cluster.kubectl("exec", f"--namespace={NAMESPACE}", target, "--", "python", "-c", program).stdout


@pytest.mark.parametrize("component", COMPONENTS)
def test_container_is_unprivileged_with_a_read_only_root(node: NodeCluster, component: str) -> None:
    facts = json.loads(exec_python(node, component, _FACTS))
    assert_is_restricted(facts)
    assert_knows_only_the_api_server(facts)


def test_reservation_pod_is_unprivileged_with_a_read_only_root(live: NodeLive) -> None:
    live.run_pod("sharer", {"gpu-fraction": "0.5"}, container={"image": PAUSE_IMAGE, "command": ["/pause"]})
    live.bind_share("sharer", "0.50", "group-s")
    live.running("sharer")
    (reservation,) = json.loads(live.reservations())
    name, namespace = reservation["metadata"]["name"], reservation["metadata"]["namespace"]
    run = ("exec", f"--namespace={namespace}", name, "--", "python", "-c", _FACTS)
    facts = json.loads(live.cluster.kubectl(*run).stdout)
    assert_is_restricted(facts)
    assert_knows_only_the_api_server(facts)


def assert_is_restricted(facts: dict[str, Any]) -> None:
    """Assert what the kernel reports of a process under Pod Security `restricted` with a read-only root."""
    status = {name: value.strip() for name, value in facts["status"].items()}
    assert set(status["Uid"].split()) != {"0"}
    assert int(status["CapEff"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert not facts["written"]


def assert_knows_only_the_api_server(facts: dict[str, Any]) -> None:
    """Assert that the environment has no variables of other Services."""
    assert [name for name in facts["environment"] if name.endswith("_SERVICE_HOST")] == ["KUBERNETES_SERVICE_HOST"]


def test_invalid_pod_is_denied_through_the_service(live: NodeLive) -> None:
    denial = live.denial("invalid", {"gpu-fraction": "abc"})
    assert "gpu-fraction" in denial
    assert "abc" in denial


def test_the_debug_page_is_reached_by_a_port_forward_only(node: NodeCluster) -> None:
    cluster, port = node.cluster, free_port()
    argv = (
        *(str(cluster.assets.path(Tool.KUBECTL)), f"--kubeconfig={cluster.kubeconfig}", f"--namespace={NAMESPACE}"),
        *("port-forward", "deployment/bowline-reconciler", f"{port}:6060"),
    )
    environment = {"PATH": os.environ["PATH"], "HOME": str(cluster.data_dir)}
    log = cluster.layout.logs / "port-forward.log"
    forward = cluster.run_process(Launch("port-forward", argv, log, cluster.data_dir, environment))
    try:
        wait_until(lambda: "Forwarding from" in log.read_text(), "the port-forward")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/debug") as response:
            assert "queue" in json.load(response)
    finally:
        forward.stop()
    path = f"/api/v1/namespaces/{NAMESPACE}"
    pods = cluster.api.get(f"{path}/pods?labelSelector=app.kubernetes.io/component=reconciler")["items"]
    connect = f"import socket; print(socket.socket().connect_ex(({pods[0]['status']['podIP']!r}, 6060)))"
    assert int(exec_python(node, "webhook", connect)) == errno.ECONNREFUSED


def test_upgrade_to_an_invalid_configuration_is_refused_by_the_image(node: NodeCluster) -> None:
    """The hook's Job runs on the kubelet; the release's own pods go on with their configuration."""

    def objects() -> str:
        command = (
            "get",
            "configmaps,deployments",
            f"--namespace={NAMESPACE}",
            "-l",
            "app.kubernetes.io/name=bowline",
        )
        return node.cluster.kubectl(*command, "-o", "jsonpath={range .items[*]}{.metadata.name} {.spec}{end}").stdout

    before = objects()
    with pytest.raises(CommandError, match=r"no_such_plugin.*is no plugin") as error_info:
        install_chart(node, {"config.plugins": [{"name": "no_such_plugin"}]})
    assert error_info.value.args[0].count("no_such_plugin") >= 3, "in the command, and from both processes"
    assert objects().replace("bowline-check ", "") == before
    install_chart(node)
    jobs = node.cluster.kubectl("get", "jobs", f"--namespace={NAMESPACE}", "-o", "name").stdout
    assert jobs == "", "a succeeded Job is deleted"


def test_image_is_at_most_270_megabytes(node: NodeCluster) -> None:
    size = int(exec_python(node, "webhook", _SIZE))
    assert size <= _IMAGE_BYTES


def test_image_has_a_compiled_standard_library_and_no_kubeconfig_reader(node: NodeCluster) -> None:
    runtime = json.loads(exec_python(node, "reconciler", _COMPILED))
    assert runtime == {"compiled": True, "kubernetes": False}


@pytest.fixture
def slow(node: NodeCluster) -> Iterator[None]:
    """Reconcilers with little CPU; the release's own again afterwards."""
    install_chart(node, _SLOW)
    yield
    install_chart(node)


@pytest.mark.usefixtures("slow")
def test_start_slower_than_the_liveness_probe_is_not_killed(node: NodeCluster) -> None:
    path = f"/api/v1/namespaces/{NAMESPACE}"
    pods = node.cluster.api.get(f"{path}/pods?labelSelector=app.kubernetes.io/component=reconciler")["items"]
    slow_pods = [
        pod for pod in pods if pod["spec"]["containers"][0]["resources"].get("limits", {}).get("cpu") == "40m"
    ]
    assert slow_pods
    restarts = [status["restartCount"] for pod in slow_pods for status in pod["status"]["containerStatuses"]]
    assert set(restarts) == {0}
    names = {pod["metadata"]["name"] for pod in slow_pods}
    events = [e for e in node.cluster.api.get(f"{path}/events")["items"] if e["involvedObject"]["name"] in names]
    assert events
    assert [event["message"] for event in events if event["message"].startswith("Liveness probe failed")] == []
