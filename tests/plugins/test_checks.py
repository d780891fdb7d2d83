"""Binds that wait for the answer of another controller: the example's shell script, with its own account's rights."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from bowline.api import names
from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.pair import Pair
from bowline_cli.main import main
from tests.live import Live
from tests.waiting import wait_until

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "checks"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/bindchecks.bowline.dev"
GROUP = names.BIND_CHECK_API_VERSION.partition("/")[0]
ACCOUNT = "system:serviceaccount:default:network"
TENANT = "tenant@example.com"


@pytest.fixture(scope="module")
def network(guarded_cluster: tuple[Cluster, Pair]) -> None:
    """The account of the check that the example's script answers."""
    cluster, _ = guarded_cluster
    cluster.kubectl("create", "serviceaccount", "network", "--namespace=default")
    role, account = "--clusterrole=bowline-check-network", "--serviceaccount=default:network"
    cluster.kubectl("create", "clusterrolebinding", "network", role, account)


@pytest.fixture
def live(strict_pair: Live, network: None) -> Live:
    """The pair with the checks of the example."""
    return strict_pair


@contextmanager
def controller(cluster: Cluster, tmp_path: Path, **environ: str) -> Iterator[None]:
    """Run the example's script, with the account of its check."""
    kubectl = cluster.assets.path(Tool.KUBECTL)
    (tmp_path / "kubectl").symlink_to(kubectl)
    kubeconfig = cluster.service_account_kubeconfig("default", "network")
    path = f"{tmp_path}:{os.environ['PATH']}"
    log = tmp_path / "log"
    with log.open("w") as output:
        script = subprocess.Popen(
            [EXAMPLE / "controller.sh"],
            env={**os.environ, "PATH": path, "KUBECONFIG": str(kubeconfig), **environ},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield
        finally:
            os.killpg(script.pid, 9)
            script.wait()


def bind_checks(live: Live) -> list[Any]:
    path = f"/apis/{names.BIND_CHECK_API_VERSION}/namespaces/{live.namespace}/bindchecks"
    items: list[Any] = live.cluster.api.get(path)["items"]
    return items


def asked(live: Live) -> Any:
    """Wait for the only BindCheck."""
    return live.until("a check is asked", lambda: next(iter(bind_checks(live)), None))


def path_of(check: Any) -> str:
    metadata = check["metadata"]
    return f"/apis/{names.BIND_CHECK_API_VERSION}/namespaces/{metadata['namespace']}/bindchecks/{metadata['name']}"


def ready(status: str, **fields: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": "Ready", "status": status, **fields}]}}


def answer(live: Live, check: Any, status: str, **fields: str) -> None:
    """Answer as the administrator."""
    patch = "application/merge-patch+json"
    live.cluster.api.request("PATCH", f"{path_of(check)}/status", ready(status, **fields), patch)


def waits(live: Live) -> None:
    """Wait until the request reports that it waits because of the plugin."""

    def is_reported() -> bool:
        status = live.request().get("status") or {}
        return bool(status.get("wait", {}).get("cause") == "plugin checks")

    live.until("the request waits", is_reported)


def request(live: Live, checks: str = "network", node: str = "gpu-node-0") -> str:
    uid = live.create_pod(annotations={names.CHECKS: checks})
    live.request_bind(node=node)
    return uid


def end_pod(live: Live) -> None:
    """Delete pod and request, as the owner and the garbage collector do."""
    live.kubectl("delete", "pod", "pod", "--grace-period=0", "--force")
    live.kubectl("delete", "bindrequest", "pod", "--wait=false", "--ignore-not-found")


def test_a_script_with_kubectl_alone_answers_and_gets_back_what_it_gave(live: Live, tmp_path: Path) -> None:
    with controller(live.cluster, tmp_path, ADDRESSES="10.0.0.7"):
        request(live)
        live.phase("pod", "Succeeded")
        (check,) = bind_checks(live)
        assert check["metadata"]["annotations"]["example.com/address"] == "10.0.0.7"
        assert check["spec"]["pod"]["uid"] == live.pod()["metadata"]["uid"]
        assert check["spec"]["node"] == "gpu-node-0"
        # The only address is taken: the second pod waits with the controller's words, until the first one ends.
        live.create_pod("second", annotations={names.CHECKS: "network"})
        live.request_bind("second")
        live.until(
            "the second waits",
            lambda: (
                "all addresses are taken" in (live.request("second").get("status") or {}).get("reason", "") or None
            ),
        )
        end_pod(live)
        live.phase("second", "Succeeded")
        (check,) = (check for check in bind_checks(live) if "deletionTimestamp" not in check["metadata"])
        assert check["metadata"]["annotations"]["example.com/address"] == "10.0.0.7"
        assert check["spec"]["pod"]["name"] == "second"


def test_a_denial_of_the_script_ends_the_decision_and_leaves_nothing(live: Live, tmp_path: Path) -> None:
    with controller(live.cluster, tmp_path, NO_NETWORK="gpu-node-1"):
        request(live, node="gpu-node-1")
        status = live.phase("pod", "Failed")["status"]
    assert status["reason"].startswith("checks/NoNetwork: ")
    assert status["suggestion"] == "RescheduleElsewhere"
    assert bind_checks(live) == []
    assert "finalizers" not in live.request()["metadata"]


def test_only_the_account_of_a_check_answers_it(live: Live) -> None:
    """A tenant with every right in its namespace is denied, and so is the controller of another check."""
    request(live, "network,audit")
    everything = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": "everything"},
        "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}],
    }
    live.kubectl("apply", "-f", "-", objects=everything)
    live.kubectl("create", "rolebinding", "everything", "--role=everything", f"--user={TENANT}")
    live.until_allowed(TENANT, "patch", "bindchecks", group=GROUP)
    live.until("both are asked", lambda: len(bind_checks(live)) == 2 or None)
    network, audit = sorted(bind_checks(live), key=lambda check: check["spec"]["check"] != "network")
    patch = "application/merge-patch+json"
    tenant, account = live.cluster.api_as(TENANT), live.cluster.api_as(ACCOUNT)
    forged = {**network, "metadata": {"name": "forged"}}
    attempts = [
        (tenant, "PATCH", f"{path_of(network)}/status", ready("True"), "one namespace is not enough"),
        (tenant, "PATCH", path_of(network), {"metadata": {"labels": {"x": "y"}}}, "one namespace is not enough"),
        (tenant, "DELETE", path_of(network), None, "one namespace is not enough"),
        (tenant, "POST", path_of(network).rpartition("/")[0], forged, "one namespace is not enough"),
        (account, "PATCH", f"{path_of(audit)}/status", ready("True"), "only an account with the verb answer"),
    ]
    for client, method, path, body, message in attempts:
        with pytest.raises(LocalApiError, match=message):
            client.request(method, path, body, patch if method == "PATCH" else "application/json")
    account.request("PATCH", f"{path_of(network)}/status", ready("True"), patch)
    with pytest.raises(LocalApiError, match="a question does not change"):
        live.cluster.api.request("PATCH", path_of(audit), {"spec": {"node": "gpu-node-1"}}, patch)


def test_without_an_answer_the_request_ends_with_the_suggestion_of_the_check(live: Live) -> None:
    """No wait ends in the first minute of a leader, which passes during the tests above."""
    request(live, "silent")
    status = live.phase("pod", "Failed")["status"]
    assert status["failure"]["reason"] == "WaitTimeout"
    assert status["suggestion"] == "DeletePod"
    assert bind_checks(live) == []


@pytest.mark.usefixtures("kubectl_in_path")
def test_without_the_definition_only_pods_with_checks_wait_and_bowline_check_names_it(
    live: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    """The last test: every BindCheck of the cluster is gone after it."""
    definition = live.cluster.api.get(CRD)
    free = {"metadata": {"finalizers": None}}
    # What the script of an earlier test holds would keep the definition.
    for check in live.cluster.api.get(f"/apis/{names.BIND_CHECK_API_VERSION}/bindchecks")["items"]:
        live.cluster.api.request("PATCH", path_of(check), free, "application/merge-patch+json")
    live.cluster.api.delete(CRD)
    objects = f"/apis/{names.BIND_CHECK_API_VERSION}/bindchecks"
    wait_until(lambda: live.not_found(CRD) and live.not_found(objects), "the API server serves no BindChecks")
    request(live)
    waits(live)
    live.create_pod("plain")
    live.request_bind("plain")
    live.phase("plain", "Succeeded")
    flags = ["--kubeconfig", str(live.cluster.kubeconfig), "--namespace", "bowline-system", "--wait", "0s"]
    assert main(["check", *flags]) == 1
    assert "missing: CustomResourceDefinition bindchecks.bowline.dev" in capsys.readouterr().out
    metadata = {key: definition["metadata"][key] for key in ("name", "labels") if key in definition["metadata"]}
    live.cluster.api.post(CRD.rpartition("/")[0], {**definition, "metadata": metadata, "status": None})
    live.cluster.wait_established("bindchecks.bowline.dev")
    answer(live, asked(live), "True")
    live.phase("pod", "Succeeded")
