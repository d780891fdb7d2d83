"""A real control plane: its output, kwok's agents, rights, and that nothing is left behind."""

import http.client
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bowline.localcluster import controlplane
from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.commands import main
from bowline.localcluster.errors import CommandError, LocalApiError, StartError
from bowline.localcluster.ports import free_ports
from bowline.localcluster.spec import ClusterSpec
from tests.waiting import LIMIT_S, wait_until

PODS = "/api/v1/namespaces/default/pods"
POD_SPEC = {"containers": [{"name": "main", "image": "example.invalid/image"}]}


def bind(cluster: Cluster, name: str, node: str) -> None:
    target = {"metadata": {"name": name}, "target": {"kind": "Node", "name": node}}
    cluster.api.post(f"{PODS}/{name}/binding", target)


def phase(cluster: Cluster, name: str) -> Any:
    return cluster.api.get(f"{PODS}/{name}")["status"]["phase"]


def test_the_api_server_reports_the_requested_version(own_cluster: Cluster) -> None:
    version = own_cluster.api.get("/version")
    assert version["gitVersion"] == own_cluster.assets.release.kubernetes
    assert f"{version['major']}.{version['minor']}" == own_cluster.assets.release.minor
    assert json.loads(own_cluster.kubectl("version", "-o=json").stdout)["serverVersion"] == version


def test_a_pod_that_is_bound_to_a_fake_node_runs(own_cluster: Cluster) -> None:
    own_cluster.api.post(PODS, {"metadata": {"name": "bound"}, "spec": POD_SPEC})
    assert phase(own_cluster, "bound") == "Pending"
    bind(own_cluster, "bound", "gpu-node-0")
    wait_until(lambda: phase(own_cluster, "bound") == "Running", "the pod's start")
    pod = own_cluster.api.get(f"{PODS}/bound")
    assert pod["spec"]["nodeName"] == "gpu-node-0"
    assert pod["status"]["containerStatuses"][0]["ready"] is True
    own_cluster.api.delete(f"{PODS}/bound")
    wait_until(lambda: "bound" not in own_cluster.kubectl("get", "pods", "-o=name").stdout, "the pod's end")


def test_a_pod_deleted_without_grace_does_not_end_the_next_pod_of_its_name(own_cluster: Cluster) -> None:
    """kwok observes the deletion late, and deletes by name."""
    run_on_node(own_cluster, "again")
    kwok = own_cluster.process("kwok")
    kwok.pause()
    try:
        own_cluster.api.request("DELETE", f"{PODS}/again", {"gracePeriodSeconds": 0})
        body = {"metadata": {"name": "again"}, "spec": {**POD_SPEC, "nodeName": "gpu-node-0"}}
        uid = own_cluster.api.post(PODS, body)["metadata"]["uid"]
    finally:
        kwok.resume()
    # kwok has processed the deletion when it has started and ended a later pod.
    run_on_node(own_cluster, "later")
    own_cluster.api.delete(f"{PODS}/later")
    wait_until(lambda: "later" not in own_cluster.kubectl("get", "pods", "-o=name").stdout, "the later pod's end")
    assert own_cluster.api.get(f"{PODS}/again")["metadata"]["uid"] == uid


def run_on_node(cluster: Cluster, name: str) -> None:
    """Create a pod on a node, and wait until it runs."""
    cluster.api.post(PODS, {"metadata": {"name": name}, "spec": {**POD_SPEC, "nodeName": "gpu-node-0"}})
    wait_until(lambda: phase(cluster, name) == "Running", f"the start of pod {name}")


def test_the_pod_of_a_job_completes_and_so_does_the_job(own_cluster: Cluster) -> None:
    own_cluster.kubectl("create", "job", "train", "--image=example.invalid/image")
    selector = f"{PODS}?labelSelector=job-name=train"
    wait_until(lambda: bool(own_cluster.api.get(selector)["items"]), "the Job's pod")
    bind(own_cluster, own_cluster.api.get(selector)["items"][0]["metadata"]["name"], "gpu-node-1")
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    wait_until(lambda: own_cluster.api.get(f"{jobs}/train")["status"].get("succeeded") == 1, "the Job's success")


def test_nodes_have_gpus_and_are_ready(own_cluster: Cluster) -> None:
    [node] = [
        item for item in own_cluster.api.get("/api/v1/nodes")["items"] if item["metadata"]["name"] == "gpu-node-0"
    ]
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert [(item["type"], item["status"]) for item in node["status"]["conditions"]] == [("Ready", "True")]
    assert node["spec"].get("taints", []) == []
    assert own_cluster.make_nodes(2) == ["gpu-node-0", "gpu-node-1"], "creating them again is allowed"


def test_a_service_account_has_the_rights_of_its_role_only(own_cluster: Cluster, tmp_path: Path) -> None:
    own_cluster.make_namespace("limited")
    own_cluster.kubectl("create", "serviceaccount", "reader", "--namespace=limited")
    own_cluster.kubectl("create", "role", "reads", "--verb=get,list", "--resource=pods", "--namespace=limited")
    own_cluster.kubectl(
        "create", "rolebinding", "reads", "--role=reads", "--serviceaccount=limited:reader", "--namespace=limited"
    )
    kubeconfig = own_cluster.service_account_kubeconfig("limited", "reader", tmp_path / "reader.kubeconfig")
    identity = own_cluster.kubectl("auth", "whoami", "-o=jsonpath={.status.userInfo.username}", kubeconfig=kubeconfig)
    assert identity.stdout == "system:serviceaccount:limited:reader"

    def may_read() -> bool:
        return own_cluster.kubectl("get", "pods", kubeconfig=kubeconfig, check=False).returncode == 0

    wait_until(may_read, "the API server applies the role")
    result = own_cluster.kubectl("get", "nodes", kubeconfig=kubeconfig, check=False)
    assert result.returncode != 0
    assert "forbidden" in result.stderr
    assert own_cluster.kubectl("delete", "pods", "--all", kubeconfig=kubeconfig, check=False).returncode == 0
    own_cluster.kubectl("create", "-f=-", "--namespace=limited", input=json.dumps(pod_object("kept")))
    result = own_cluster.kubectl("delete", "pod", "kept", kubeconfig=kubeconfig, check=False)
    assert "forbidden" in result.stderr


def pod_object(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": POD_SPEC}


def test_a_renewed_token_replaces_the_old_one_in_its_file(own_cluster: Cluster, tmp_path: Path) -> None:
    own_cluster.kubectl("create", "serviceaccount", "renewed")
    path = tmp_path / "kubeconfig"
    own_cluster.service_account_kubeconfig("default", "renewed", path)
    token_file = tmp_path / "kubeconfig.token"
    token_file.write_text("spoilt")
    assert own_cluster.kubectl("auth", "whoami", kubeconfig=path, check=False).returncode != 0
    own_cluster.service_account_kubeconfig("default", "renewed", path)
    assert own_cluster.kubectl("auth", "whoami", kubeconfig=path).returncode == 0


def test_a_restarted_api_server_has_the_data_and_the_address_it_had(own_cluster: Cluster) -> None:
    own_cluster.api.post("/api/v1/namespaces", {"metadata": {"name": "survives"}})
    server = own_cluster.server
    own_cluster.stop_apiserver()
    with pytest.raises(OSError, match="refused"):
        own_cluster.api.get("/version")
    own_cluster.start_apiserver()
    assert own_cluster.server == server
    assert own_cluster.api.get("/api/v1/namespaces/survives")["status"]["phase"] == "Active"
    # The controllers and kwok reconnect by themselves.
    own_cluster.api.post(PODS, {"metadata": {"name": "after"}, "spec": POD_SPEC})
    bind(own_cluster, "after", "gpu-node-0")
    wait_until(lambda: phase(own_cluster, "after") == "Running", "the pod's start")


def test_a_paused_api_server_keeps_connections_and_answers_nothing(own_cluster: Cluster) -> None:
    port = int(own_cluster.server.rpartition(":")[2])
    own_cluster.pause_apiserver()
    try:
        connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=0.3)
        # The kernel accepts the connection; no process completes the handshake.
        with pytest.raises(TimeoutError):
            connection.connect()
        connection.close()
    finally:
        own_cluster.resume_apiserver()
    assert own_cluster.api.get("/readyz") == "ok"


def test_the_audit_log_names_who_did_what(own_cluster: Cluster) -> None:
    own_cluster.api.post("/api/v1/namespaces", {"metadata": {"name": "audited"}})
    events = [json.loads(line) for line in own_cluster.audit_lines()]
    [event] = [
        event
        for event in events
        if event["requestURI"] == "/api/v1/namespaces"
        and event["verb"] == "create"
        and event["objectRef"].get("name") == "audited"
    ]
    assert event["user"]["username"] == "bowline-local-admin"
    assert event["responseStatus"]["code"] == 201


def test_errors_have_the_api_servers_status_and_message(own_cluster: Cluster) -> None:
    with pytest.raises(LocalApiError, match="not found") as caught:
        own_cluster.api.get(f"{PODS}/absent")
    assert caught.value.status == 404
    with pytest.raises(CommandError, match=r"kubectl get pod absent ended with 1: .*not found"):
        own_cluster.kubectl("get", "pod", "absent")


def test_stop_leaves_no_process_and_no_folder_behind() -> None:
    cluster = Cluster.start(ClusterSpec(controllers=(), kwok=False))
    processes = [cluster.process(name) for name in (Tool.ETCD, Tool.APISERVER)]
    assert all(process.alive for process in processes)
    cluster.stop()
    assert not any(process.alive for process in processes)
    assert not cluster.data_dir.exists()
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, 0)
    cluster.stop()


def test_a_start_returns_when_the_aggregated_roles_are_complete() -> None:
    """Who is given `edit` at once may read what it creates: a controller fills these roles after the API server."""
    with Cluster.start(ClusterSpec(controllers=("clusterrole-aggregation-controller",), kwok=False)) as cluster:
        items = cluster.api.get("/apis/rbac.authorization.k8s.io/v1/clusterroles")["items"]
    rules = {item["metadata"]["name"]: item["rules"] or [] for item in items}
    assert rules["view"]
    assert all(rule in rules["edit"] for rule in rules["view"])
    assert all(rule in rules["admin"] for rule in rules["edit"])


@pytest.mark.parametrize("position", [0, 1], ids=["API server", "kwok"])
def test_a_port_taken_before_the_start_is_replaced(monkeypatch: pytest.MonkeyPatch, position: int) -> None:
    # 1. the ports are free  2. another process takes one  3. the process ends with "address already in use"
    # 4. everything is restarted on other ports
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        first = free_ports(2)
        first[position] = listener.getsockname()[1]
        tries = iter([first])
        monkeypatch.setattr(controlplane, "free_ports", lambda count: next(tries, None) or free_ports(count))
        with Cluster.start(ClusterSpec(controllers=())) as cluster:
            assert next(tries, None) is None
            assert cluster.api.get("/readyz") == "ok"
            assert cluster.server != f"https://127.0.0.1:{first[0]}"


def test_no_other_user_of_the_machine_can_read_etcd(own_cluster: Cluster) -> None:
    """etcd requires no credentials: it has no port, and its sockets are in a folder of the cluster's owner."""
    listening = Path("/proc/net/tcp").read_text() + Path("/proc/net/tcp6").read_text()
    etcd = own_cluster.process(Tool.ETCD).pid
    sockets = {
        str(descriptor.readlink()) for descriptor in Path(f"/proc/{etcd}/fd").iterdir() if descriptor.is_symlink()
    }
    inodes = {name.removeprefix("socket:[").removesuffix("]") for name in sockets if name.startswith("socket:[")}
    assert inodes
    ports = [line for line in listening.splitlines()[1:] if len(line.split()) > 9 and line.split()[9] in inodes]
    assert ports == []
    folder = own_cluster.layout.etcd_socket.parent
    assert own_cluster.layout.etcd_socket.is_socket()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_folder_with_a_path_too_long_for_sockets_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"too long for a socket .* choose a shorter data folder"):
        Cluster.start(ClusterSpec(data_dir=tmp_path / ("x" * 100)))


def test_a_failed_start_reports_the_reason_and_leaves_nothing(tmp_path: Path) -> None:
    spec = ClusterSpec(apiserver_args=("--no-such-flag",), data_dir=tmp_path / "data")
    with pytest.raises(StartError, match="kube-apiserver ended with 1") as caught:
        Cluster.start(spec)
    assert "unknown flag: --no-such-flag" in str(caught.value)
    processes = Path("/proc").glob("[0-9]*/cmdline")
    assert not [path for path in processes if str(tmp_path).encode() in _read(path)]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_up_status_env_and_down(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"

    def command(*args: str) -> subprocess.CompletedProcess[str]:
        # A separate command: what `up` starts has to outlive it.
        words = [sys.executable, "-m", "bowline.localcluster", *args, f"--data-dir={folder}"]
        return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    assert command("status").returncode == 3
    up = command("up", "--no-chart", "--nodes=1")
    try:
        assert up.returncode == 0, up.stderr
        for later in ("env", "down"):
            assert f"-m bowline.localcluster {later} --data-dir={folder}" in up.stdout, (
                "the printed next steps are for this cluster"
            )
        status = command("status")
        assert status.returncode == 0
        assert all(f"{name} " in status.stdout for name in ("etcd", "kube-apiserver", "kwok"))
        again = command("up", "--no-chart")
        assert again.returncode == 1
        assert "already running" in again.stderr
        env = command("env").stdout
        assert f"export KUBECONFIG={folder}/admin.kubeconfig" in env
        nodes = subprocess.run(
            ["sh", "-c", f"{env} kubectl get nodes -o name"], capture_output=True, text=True, check=True
        )
        assert nodes.stdout == "node/gpu-node-0\n"
    finally:
        assert command("down").returncode == 0
    assert not folder.exists()
    assert command("status").returncode == 3
    assert command("down").returncode == 0


def test_down_keeps_a_folder_that_is_not_a_clusters(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precious").write_text("data")
    assert main(["down", f"--data-dir={tmp_path}"]) == 1
    assert "nothing was removed" in capsys.readouterr().err
    assert (tmp_path / "precious").exists()


def test_up_rejects_a_folder_with_other_content(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`down` removes the folder with all of its content."""
    (tmp_path / "precious").write_text("data")
    try:
        assert main(["up", "--no-chart", "--nodes=0", f"--data-dir={tmp_path}"]) == 1
        assert "holds something else" in capsys.readouterr().err
    finally:
        main(["down", f"--data-dir={tmp_path}"])
    assert (tmp_path / "precious").exists()
