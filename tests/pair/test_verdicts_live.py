"""One verdict in every form: kubectl, the API's Status, ``bowline lint``, the audit log.

Pods that Bowline allows are also accepted by the API server: ``BOWLINE_ADMITTED_PODS=5000`` tries that many random
pods instead of a few hundred, all as dry runs.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bowline.api import names
from bowline.framework.admission import AdmissionChain, Verdict
from bowline.framework.config import Settings
from bowline.framework.registry import Registry
from bowline.kube.client import KubeClient
from bowline.kube.config import load_access
from bowline.kube.errors import ApiStatus, Invalid
from bowline.kube.resources import Resource
from bowline.localcluster.kubeconfig import api_server
from bowline.plugins.catalog import BUILTINS
from bowline.testing.builders import bind_request, pod
from bowline_cli.main import main
from bowline_cli.manifests import Manifest
from bowline_cli.verdicts import review_manifest, with_ready_kinds
from tests.live import Live

RESOURCES = {
    "Pod": Resource("", "v1", "pods", "Pod"),
    "Deployment": Resource("apps", "v1", "deployments", "Deployment"),
    "CronJob": Resource("batch", "v1", "cronjobs", "CronJob"),
    "BindRequest": Resource(names.GROUP, names.VERSION, names.PLURAL, names.KIND),
}
FAULTY = {names.GPU_FRACTION: '2"\\', names.GPU_MEMORY: "much\nmore", names.GPU_FRACTION_NUM_DEVICES: "0" * 80}


@pytest.fixture
async def client(pair: Live) -> AsyncIterator[KubeClient]:
    """The administrator's access."""
    async with KubeClient(await load_access(api_server(pair.cluster.kubeconfig))) as client:
        yield client


def lint(raw: Any) -> Verdict:
    """Return the findings of ``bowline lint`` with the configuration of the tests' pair."""
    settings = with_ready_kinds(Settings())
    chain = AdmissionChain(Registry(BUILTINS, discover=dict).build(settings), settings)
    return review_manifest(chain, Manifest("x.yaml", 1, json.loads(json.dumps(raw)))).review


def template(annotations: dict[str, str], restart: str) -> Any:
    metadata = {"labels": {"app": "x"}, "annotations": annotations}
    return {"metadata": metadata, "spec": {**pod()["spec"], "restartPolicy": restart}}


def shared_pod(annotations: dict[str, str]) -> Any:
    raw = pod("w")
    raw["metadata"]["annotations"] = annotations
    return raw


def deployment(annotations: dict[str, str]) -> Any:
    selector = {"matchLabels": {"app": "x"}}
    spec = {"replicas": 0, "selector": selector, "template": template(annotations, "Always")}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w"}, "spec": spec}


def cron_job(annotations: dict[str, str]) -> Any:
    job = {"spec": {"template": template(annotations, "Never")}}
    spec = {"schedule": "0 0 1 1 *", "jobTemplate": job}
    return {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "w"}, "spec": spec}


ONE = {names.GPU_FRACTION: "2"}
SAME = [
    pytest.param(shared_pod(FAULTY), id="a pod with several, and values that need quoting"),
    pytest.param(cron_job(FAULTY), id="a CronJob with several"),
    pytest.param(bind_request("w", "gpu-node-0", uid="uid-1", podUID="uid-2"), id="a BindRequest"),
]


@pytest.mark.parametrize("raw", SAME)
async def test_kubectl_causes_and_lint_report_the_same_errors_in_the_same_order(
    pair: Live, client: KubeClient, raw: Any
) -> None:
    namespaced = {**raw, "metadata": {**raw["metadata"], "namespace": pair.namespace}}
    faults = [f"{fault} ({fault.rule.id})" for fault in lint(namespaced).errors]
    assert faults
    for _ in range(3):  # the order must not vary
        status = await denial_status(client, pair, namespaced)
        *causes, signature = status.causes
        assert [f"{cause.field}: {cause.message}" for cause in causes] == faults
        assert (signature.field, signature.message.partition(";")[0]) == ("bowline", "denied the object")
        assert (status.details["kind"], status.details["name"]) == (raw["kind"], "w")
        count = f"{len(faults)} errors: " if len(faults) > 1 else ""
        # The API server prefixes the webhook's name; the client adds what it was to write.
        assert f"denied the request: {count}{'; '.join(faults)} (create " in status.message
    result = pair.kubectl("apply", "-f", "-", objects=namespaced, check=False)
    text = result.stderr.strip().removeprefix(f'The {raw["kind"]} "w" is invalid: ')
    *lines, signature_line = [line.removeprefix("* ") for line in text.splitlines() if line]
    assert lines == faults
    assert signature_line == "bowline: denied the object; a rule is explained by: bowline rule RULE"


async def denial_status(client: KubeClient, pair: Live, raw: Any) -> ApiStatus:
    with pytest.raises(Invalid) as caught:
        await client.create(RESOURCES[raw["kind"]], pair.namespace, raw)
    return caught.value.status


def test_a_denial_and_explain_name_the_published_documentation(
    pair: Live, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pair.pair.webhook is not None
    pair.pair.webhook.stop()
    try:
        pair.pair.upgrade({"config.docsURL": "https://docs.example.com/bowline/"})
        pair.pair.launch_webhook().wait_ready()
        share = {**shared_pod(ONE), "metadata": {"name": "w", "annotations": ONE}}
        result = pair.kubectl("apply", "-f", "-", objects=share, check=False)
        page = "https://docs.example.com/bowline/rules.html#gpu_requestfraction-range"
        assert result.stderr.splitlines()[-1] == f"* bowline: denied the object; see {page}"
        pair.create_pod()
        assert (
            main(["explain", "pod", f"--namespace={pair.namespace}", f"--kubeconfig={pair.cluster.kubeconfig}"]) == 0
        )
        assert "  more   https://docs.example.com/bowline" in capsys.readouterr().out
    finally:
        pair.pair.webhook.stop()
        pair.pair.upgrade({"config.docsURL": ""})
        pair.pair.launch_webhook().wait_ready()


# --- the audit log ---


def audit_annotations(pair: Live, resource: str, name: str) -> dict[str, str] | None:
    """Return the audit annotations of our webhooks for the creation of the object; None until it is logged."""
    for line in pair.cluster.audit_lines():
        event = json.loads(line)
        about = event.get("objectRef") or {}
        if (event["stage"], event["verb"]) == ("ResponseComplete", "create") and (
            about.get("namespace"),
            about.get("resource"),
            about.get("name"),
        ) == (pair.namespace, resource, name):
            annotations = event.get("annotations") or {}
            ours = {key: value for key, value in annotations.items() if key.partition("/")[0].endswith("bowline.dev")}
            return {key: value for key, value in ours.items() if not key.startswith(("mutation.", "patch."))}
    return None


AUDITED = [
    pytest.param(
        shared_pod({names.GPU_FRACTION: "2", names.GPU_MEMORY: "1", names.GPU_FRACTION_NUM_DEVICES: "0"}),
        "pods",
        {
            "pods.bowline.dev/decision": "refused",
            "pods.bowline.dev/rules": "gpu_request/fraction-range,gpu_request/memory-and-fraction,"
            "gpu_request/num-devices-format",
        },
        id="a denied pod: the rule ids",
    ),
    pytest.param(
        {**shared_pod({names.GPU_FRACTION: "0.5"}), "spec": {**pod()["spec"], "schedulerName": "default-scheduler"}},
        "pods",
        {"pods.bowline.dev/decision": "warned", "pods.bowline.dev/rules": "scope/scheduler"},
        id="a pod with a warning",
    ),
    pytest.param(shared_pod({names.GPU_FRACTION: "0.5"}), "pods", {}, id="a valid pod, patched: nothing"),
    pytest.param(
        deployment(ONE),
        "deployments",
        {
            "workloads.bowline.dev/decision": "refused",
            "workloads.bowline.dev/rules": "gpu_request/fraction-range",
        },
        id="a denied Deployment",
    ),
]


@pytest.mark.parametrize(("raw", "resource", "annotations"), AUDITED)
def test_the_audit_log_records_the_decision_and_its_rules(
    pair: Live, raw: Any, resource: str, annotations: dict[str, str]
) -> None:
    namespaced = {**raw, "metadata": {**raw["metadata"], "namespace": pair.namespace}}
    pair.kubectl("create", "-f", "-", objects=namespaced, check=False)
    assert pair.until(
        "the creation is in the audit log", lambda: as_list(audit_annotations(pair, resource, "w"))
    ) == [annotations]


def as_list(value: dict[str, str] | None) -> list[dict[str, str]] | None:
    """Return the annotations as a result to wait for: also none are a result."""
    return None if value is None else [value]


# --- what is accepted ---
