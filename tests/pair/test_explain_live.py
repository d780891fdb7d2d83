"""``bowline explain`` on a real cluster, with the rights of the role ``view``: each cause, and its remedy."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bowline.api import names
from bowline.testing.builders import pod
from bowline_cli.main import main
from tests.live import Live
from tests.pair.conftest import own
from tests.plugins.storage import Storage

pytestmark = pytest.mark.usefixtures("kubectl_in_path")

Explain = Callable[..., str]


@pytest.fixture
def explain(pair: Live, owner: Path, capsys: pytest.CaptureFixture[str]) -> Explain:
    """Run the command as the namespace's owner and each command that it names; returns its output."""
    own(pair)

    def run(target: str, *, kubeconfig: Path = owner, status: int = 0) -> str:
        arguments = ["explain", target, f"--namespace={pair.namespace}", f"--kubeconfig={kubeconfig}"]
        capsys.readouterr()
        assert main(arguments) == status
        out, err = capsys.readouterr()
        assert err == "" or status, err
        for command in commands(out):
            works(pair, command, kubeconfig)
        return out + err

    return run


def works(pair: Live, command: str, kubeconfig: Path) -> None:
    """Run a command that explain names with the same rights; of one that deletes, whether it may run."""
    words = shlex.split(command)
    assert words[0] == "kubectl"
    if "delete" in words:
        words = ["kubectl", *words[1:3], "auth", "can-i", "delete", "/".join(words[4:])]
    pair.cluster.kubectl(*words[1:], kubeconfig=kubeconfig)


def until_explained(pair: Live, explain: Explain, name: str, text: str) -> str:
    """Wait until the explanation has the text; returns it."""

    def explanation() -> str | None:
        out = explain(name)
        return out if text in out else None

    return pair.until(f"explain names: {text}", explanation)


def commands(out: str) -> list[str]:
    return re.findall(r"^  next   (.+)$", out, re.MULTILINE)


@contextmanager
def without_reconciler(pair: Live) -> Iterator[None]:
    """Stop the reconciler; start it again at the end."""
    assert pair.pair.reconcilers[0].stop()
    try:
        yield
    finally:
        pair.pair.launch_reconciler().wait_ready()
        # A standby is ready, too.
        path = "/apis/coordination.k8s.io/v1/namespaces/bowline-system/leases/bowline-reconciler"
        pair.until("it leads", lambda: pair.cluster.api.get(path)["spec"].get("holderIdentity"))


def test_a_pod_without_a_decision(pair: Live, explain: Explain) -> None:
    pair.create_pod()
    out = explain("pod")
    assert "no BindRequest names the pod, and example-scheduler has reported nothing about it" in out
    assert "not read" not in out
    assert "  more " not in out, "no documentation is published"
    assert explain("pod/pod") == out or "since" in out
    pair.request_bind()
    pair.phase("pod", "Succeeded")
    assert "the pod is bound to node gpu-node-0" in explain("pod")


def test_a_pod_that_waits_for_a_claim(pair: Live, explain: Explain) -> None:
    storage = Storage(pair)
    storage.make_claim()
    storage.make_pod()
    pair.request_bind()
    out = until_explained(pair, explain, "pod", "at the latest it fails with WaitTimeout at 20")
    assert f"kubectl -n {pair.namespace} describe persistentvolumeclaims data" in commands(out)
    assert f"StorageClass {storage.name('late')} of PersistentVolumeClaim {pair.namespace}/data does not exist" in out
    assert f"ask an administrator to run: kubectl describe storageclasses {storage.name('late')}" in out
    out = explain("pod", kubeconfig=pair.cluster.kubeconfig)
    assert "kubectl get storageclasses" in commands(out)
    assert f"  also   StorageClass {storage.name('late')} does not exist" in out
    try:
        storage.make_volume("a")
        storage.make_class()
        pair.phase("pod", "Succeeded")
    finally:
        storage.clean()


def test_no_reconciler_leads(pair: Live, explain: Explain) -> None:
    with without_reconciler(pair):
        pair.create_pod()
        pair.request_bind()
        # A tenant's Lease says nothing of reconcilers or schedulers.
        for name in ("stop", "bowline"):
            renewal = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            held = {"holderIdentity": "nobody", "leaseDurationSeconds": 2**31 - 1, "renewTime": renewal}
            forged = {"metadata": {"name": name, "labels": {names.LEASE_LABEL: "cluster"}}, "spec": held}
            pair.cluster.api.post(f"/apis/coordination.k8s.io/v1/namespaces/{pair.namespace}/leases", forged)
        out = explain("pod")
        assert commands(out) == []
        assert "ask an administrator to run: kubectl -n bowline-system get leases,deployments,pods" in out
        assert "no reconciler leads: no Lease of a reconciler is held" in out
        assert "last renewed 20" in out
        out = explain("pod", kubeconfig=pair.cluster.kubeconfig)
        assert "kubectl -n bowline-system get leases,deployments,pods" in commands(out)
        assert "Deployment bowline-system/bowline-reconciler: 0 of " in out
    pair.phase("pod", "Succeeded")


def deployment(pair: Live, name: str = "served", **change: object) -> dict[str, Any]:
    pod_template = {"metadata": {"labels": {"app": name}}, "spec": {**pod("x", pair.namespace)["spec"], **change}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": pod_template},
    }


def test_a_controller_whose_pods_are_not_created_until_the_webhook_answers(pair: Live, explain: Explain) -> None:
    assert pair.pair.webhook is not None
    pair.pair.webhook.stop()
    try:
        replica_set = {**deployment(pair), "kind": "ReplicaSet"}
        pair.create(replica_set)
        out = until_explained(pair, explain, "served", "its pods are not created: ")
        out = until_explained(pair, explain, "rs/served", "are not created: ")
        assert "failed calling webhook" in out
        assert "  until  a replica of the webhook answers; the controller retries" in out
    finally:
        pair.pair.launch_webhook().wait_ready()
    out = until_explained(pair, explain, "served", "no scheduler has decided")
    assert f"ReplicaSet {pair.namespace}/served: 1 of 1 pods wait" in out
    assert "failed calling webhook" not in explain("rs/served"), "the event of the outage is no cause any more"


def test_a_quota_is_the_cause_in_the_words_of_each_controller(pair: Live, explain: Explain) -> None:
    quotas, hard = f"/api/v1/namespaces/{pair.namespace}/resourcequotas", {"pods": "0"}
    pair.cluster.api.post(quotas, {"metadata": {"name": "none"}, "spec": {"hard": hard}})
    # As the quota controller does, which does not run here; admission reads the status.
    pair.cluster.api.patch(f"{quotas}/none/status", {"status": {"hard": hard, "used": {"pods": "0"}}})
    stateful_set, job = (
        {**deployment(pair, name), "kind": kind} for name, kind in (("db", "StatefulSet"), ("batch", "Job"))
    )
    stateful_set["spec"]["serviceName"] = ""
    template = {"spec": {**job["spec"]["template"]["spec"], "restartPolicy": "Never"}}
    pair.create(
        deployment(pair, "web"), stateful_set, {**job, "apiVersion": "batch/v1", "spec": {"template": template}}
    )
    for target in ("deploy/web", "sts/db", "job/batch"):
        until_explained(pair, explain, target, "are not created: exceeded quota: none")


def test_all_pods_that_wait(pair: Live, owner: Path, explain: Explain, capsys: pytest.CaptureFixture[str]) -> None:
    pair.create_pod("gated", schedulingGates=[{"name": "example.com/quota"}])
    pair.create_pod("bound")
    pair.request_bind("bound")
    pair.phase("bound", "Succeeded")
    pair.until("the bound pod runs", lambda: pair.pod("bound")["status"].get("phase") == "Running")
    assert "scheduling gates" in explain("gated")
    arguments = [f"--namespace={pair.namespace}", f"--kubeconfig={owner}"]
    assert main(["explain", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [["NAMESPACE", "NAME"], [pair.namespace, "gated"]]
    assert main(["explain", "-A", "-o", "json", f"--kubeconfig={pair.cluster.kubeconfig}"]) == 0
    items = json.loads(capsys.readouterr().out)["items"]
    (item,) = (item for item in items if item["namespace"] == pair.namespace)
    assert (item["kind"], item["name"], item["isStuck"]) == ("Pod", "gated", True)
    assert main(["explain", "-A", f"--kubeconfig={owner}"]) == 2
    assert "missing permission: " in capsys.readouterr().err
