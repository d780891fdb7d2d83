"""`bowline check` on a real release: nothing is missing, then each part is broken in turn and named."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from bowline.testing.builders import bind_request, pod
from bowline_cli.api import ClusterError
from bowline_cli.check import check as check_release
from bowline_cli.cluster import connect
from tests.pairs import running_pair
from tests.reconciler.test_foreign_crd import THEIRS
from tests.waiting import LIMIT_S, wait_until
from tools.generate import crd

NAMESPACE = "bowline-system"
WELL = (
    "bowline-webhook: bowline:0.1.0\nbowline-reconciler: bowline:0.1.0\n"
    f"Bowline in namespace {NAMESPACE}: all is well\n"
)
HOOKS = "/apis/admissionregistration.k8s.io/v1"
ACCOUNT = "/api/v1/namespaces/kai-resource-reservation/serviceaccounts/bowline-gpu-agent"
Release = tuple[Cluster, Pair]


@pytest.fixture(scope="module")
def release() -> Iterator[Release]:
    """A release of its own, which the tests break and repair."""
    with running_pair(1, {}) as cluster_and_pair:
        yield cluster_and_pair


def command(cluster: Cluster, *arguments: str, kubeconfig: object = "") -> list[str]:
    return [
        sys.executable,
        "-m",
        "bowline_cli",
        "check",
        f"--kubeconfig={kubeconfig or cluster.kubeconfig}",
        *arguments,
    ]


def check(cluster: Cluster, *arguments: str, kubeconfig: object = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(cluster, *arguments, kubeconfig=kubeconfig),
        capture_output=True,
        text=True,
        check=False,
        timeout=2 * LIMIT_S,
    )


def report(cluster: Cluster) -> str:
    """The report of a release that lacks something."""
    completion = check(cluster)
    assert (completion.returncode, completion.stderr) == (1, ""), completion
    assert all(line.startswith("missing: ") and "; next: " in line for line in completion.stdout.splitlines())
    return completion.stdout


def assert_well(cluster: Cluster) -> None:
    completion = check(cluster, f"--wait={LIMIT_S}s")
    assert (completion.returncode, completion.stdout, completion.stderr) == (0, WELL, "")
    document = json.loads(check(cluster, "-o", "json").stdout)
    assert (document["well"], document["missing"], document["notChecked"]) == (True, [], [])
    assert [f"{name}: {image}" for name, image in document["images"].items()] == WELL.splitlines()[:-1]


@contextmanager
def repaired(release: Release, repair: Callable[[], object]) -> Iterator[Cluster]:
    """A release that is repaired and well after the block."""
    try:
        yield release[0]
    finally:
        repair()
    assert_well(release[0])


def test_nothing_is_missing_from_a_healthy_release(release: Release) -> None:
    assert_well(release[0])


def test_a_namespace_without_a_release_is_named(release: Release) -> None:
    completion = check(release[0], "--namespace=default")
    assert completion.returncode == 1
    assert (
        "missing: Deployments of Bowline in namespace default; next: helm list --all-namespaces" in completion.stdout
    )
    programs = check(release[0], "--namespace=default", "--output=json")
    document = json.loads(programs.stdout)
    assert (programs.returncode, document["version"], document["well"]) == (1, 1, False)
    assert [f"missing: {f['text']}; next: {f['next']}" for f in document["missing"]] == completion.stdout.splitlines()
    assert (document["notChecked"], document["images"]) == ([], {})


def test_a_deployment_whose_pods_are_not_ready(release: Release) -> None:
    cluster, _ = release
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/bowline-reconciler"
    with repaired(release, lambda: cluster.api.patch(path, {"spec": {"replicas": 0}})):
        cluster.api.patch(path, {"spec": {"replicas": 1}})
        assert "ready replicas of Deployment bowline-reconciler: 0 of 1" in report(cluster)
        pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
        wait_until(lambda: cluster.api.get(pods)["items"], "the Deployment's pod exists")
        pod_name = cluster.api.get(pods)["items"][0]["metadata"]["name"]
        target = {"target": {"kind": "Node", "name": "gpu-node-0"}, "metadata": {"name": pod_name}}
        cluster.api.post(f"{pods}/{pod_name}/binding", {"apiVersion": "v1", "kind": "Binding", **target})
        assert_well(cluster)


def test_a_webhook_that_is_stopped_and_a_missing_ca_bundle(release: Release) -> None:
    cluster, pair = release

    def restart() -> None:
        pair.launch_webhook().wait_ready()

    with repaired(release, restart):
        assert pair.webhook is not None
        pair.webhook.stop()
        text = report(cluster)
        assert "missing: an answer of the webhook (500 InternalError: " in text
        assert 'failed calling webhook "pods.bowline.dev"' in text
        path = f"{HOOKS}/validatingwebhookconfigurations/bowline-webhook"
        hooks = cluster.api.get(path)["webhooks"]
        for hook in hooks:
            del hook["clientConfig"]["caBundle"]
        cluster.api.patch(path, {"webhooks": hooks})
        text = f"caBundle of {len(hooks)} of {len(hooks)} webhooks in validatingwebhookconfiguration/bowline-webhook"
        assert text in report(cluster)


@pytest.mark.parametrize("kind", ["mutatingwebhookconfigurations", "validatingwebhookconfigurations"])
def test_a_webhook_configuration_that_is_deleted(release: Release, kind: str) -> None:
    cluster, pair = release
    with repaired(release, pair.upgrade):
        cluster.api.delete(f"{HOOKS}/{kind}/bowline-webhook")
        assert f"missing: {kind[:-1]}/bowline-webhook; next: helm upgrade bowline CHART -n {NAMESPACE}" in report(
            cluster
        )


def test_without_webhook_configurations_and_policy_no_pod_is_mutated_or_denied(release: Release) -> None:
    cluster, pair = release
    with repaired(release, pair.upgrade):
        for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations"):
            cluster.api.delete(f"{HOOKS}/{kind}/bowline-webhook")
        cluster.api.delete(f"{HOOKS}/validatingadmissionpolicybindings/bowline-pods")
        texts = ("the denial of a pod", "the mutation of a pod with a GPU share")
        wait_until(lambda: all(map(report(cluster).__contains__, texts)), "the API server has noticed the deletions")


def test_a_reconciler_that_is_stopped_and_wait_until_another_one_leads(release: Release) -> None:
    cluster, pair = release
    with repaired(release, lambda: None):
        pair.reconcilers[0].stop()
        text = report(cluster)
        assert "a reconciler that holds Lease bowline-reconciler" in text
        assert (
            "next: helm upgrade bowline CHART -n bowline-system --reset-then-reuse-values --set reconciler.r" in text
        )
        waiting = subprocess.Popen(command(cluster, "--wait=2m"), stdout=subprocess.PIPE, text=True)
        pair.launch_reconciler().wait_ready()
        output, _ = waiting.communicate(timeout=2 * LIMIT_S)
        assert (waiting.returncode, output) == (0, WELL)


def test_an_api_server_that_does_not_answer_is_unknown_and_waited_for(
    release: Release, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, _ = release
    api = connect(argparse.Namespace(kubeconfig=str(cluster.kubeconfig), context=None))
    cluster.stop_apiserver()
    assert check(cluster).returncode == 2
    with pytest.raises(ClusterError, match="cannot be reached"):
        check_release(api, NAMESPACE, timedelta())
    with ThreadPoolExecutor() as pool:
        status = pool.submit(check_release, api, NAMESPACE, timedelta(seconds=LIMIT_S))
        cluster.start_apiserver()
        assert status.result() == 0
    api.close()
    assert capsys.readouterr().out == WELL


def test_the_service_account_of_agents_is_deleted(release: Release) -> None:
    cluster, pair = release
    with repaired(release, pair.upgrade):
        cluster.api.delete(ACCOUNT)
        assert "missing: ServiceAccount kai-resource-reservation/bowline-gpu-agent" in report(cluster)


def test_the_crd_of_another_project(release: Release) -> None:
    cluster, _ = release

    def restore() -> None:
        arguments = ("apply", "--server-side", "--force-conflicts", "-f", "-")
        cluster.kubectl(*arguments, input=crd.as_yaml())

    with repaired(release, restore):
        cluster.kubectl("replace", "-f", "-", input=json.dumps(THEIRS))
        assert "conditions, failure, lastAttemptTime, nextAttemptTime" in report(cluster)


def test_a_second_binder(release: Release) -> None:
    cluster, _ = release
    cluster.make_namespace("binders")
    path = f"/apis/{names.API_VERSION}/namespaces/binders/{names.PLURAL}"
    unbound: dict[str, Any] = pod("train", "binders")
    uid = cluster.api.post("/api/v1/namespaces/binders/pods", unbound)["metadata"]["uid"]
    with repaired(release, lambda: cluster.api.delete(f"{path}/train")):
        cluster.api.post(path, bind_request("train", "gpu-node-0", "binders", uid))
        wait_until(
            lambda: cluster.api.get(f"{path}/train")["status"].get("phase") == "Succeeded", "the request is executed"
        )
        cluster.api.patch(f"{path}/train/status?fieldManager=binder", {"status": {"failedAttempts": 1}})
        text = "an end of the second binder binder, which has written the status of BindRequest binders/train"
        assert text in report(cluster)


LABELS = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "labels.example.com"},
    "spec": {
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]},
                {
                    "apiGroups": [names.GROUP],
                    "apiVersions": ["*"],
                    "resources": [names.PLURAL],
                    "operations": ["CREATE"],
                },
            ]
        },
        "validations": [
            {
                "expression": "has(object.metadata.labels) && 'team' in object.metadata.labels",
                "message": "the label team is required",
            }
        ],
    },
}
LABELS_BINDING = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicyBinding",
    "metadata": {"name": "labels.example.com"},
    "spec": {"policyName": "labels.example.com", "validationActions": ["Deny"]},
}


def test_a_policy_of_others_that_denies_the_objects_of_the_check_is_no_failure_of_bowline(release: Release) -> None:
    cluster, _ = release
    policy, binding = f"{HOOKS}/validatingadmissionpolicies", f"{HOOKS}/validatingadmissionpolicybindings"

    def remove() -> None:
        cluster.api.delete(f"{binding}/labels.example.com")
        cluster.api.delete(f"{policy}/labels.example.com")
        wait_until(lambda: not is_denied(), "the API server applies the policy no more")

    def is_denied() -> bool:
        return "the label team" in check(cluster).stdout

    with repaired(release, remove):
        cluster.api.post(policy, LABELS)
        cluster.api.post(binding, LABELS_BINDING)
        wait_until(is_denied, "the API server applies the policy")
        completion = check(cluster)
        assert (completion.returncode, completion.stderr) == (0, "")
        for what in ("a valid pod", "a BindRequest"):
            assert f"not checked: the admission of {what} (" in completion.stdout
        assert completion.stdout.endswith("all is well, as far as it was checked\n")


def test_what_a_user_may_not_read_is_not_checked_and_nothing_is_missing(release: Release) -> None:
    cluster, _ = release
    cluster.kubectl("create", "serviceaccount", "reader")
    kubeconfig = cluster.service_account_kubeconfig("default", "reader")
    nothing = check(cluster, kubeconfig=kubeconfig)
    assert nothing.returncode == 0
    assert "not checked: missing permission: 403 Forbidden: deployments.apps is forbidden" in nothing.stdout
    assert nothing.stdout.endswith("all is well, as far as it was checked\n")
    cluster.kubectl("create", "clusterrolebinding", "reader", "--clusterrole=view", "--serviceaccount=default:reader")
    wait_until(lambda: "deployments" not in check(cluster, kubeconfig=kubeconfig).stdout, "the account may view")
    view = check(cluster, kubeconfig=kubeconfig)
    assert view.returncode == 0
    assert 'cannot create resource "pods"' in view.stdout
