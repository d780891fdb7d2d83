"""Admission on a real API server: the chart's configurations, the webhook's verdicts, and the stored objects."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from bowline.api import names
from bowline.api.rule import PRODUCT_FIELD, rules_in
from bowline.kube.client import KubeClient
from bowline.kube.config import load_access
from bowline.kube.errors import ApiStatus, Invalid
from bowline.kube.resources import Resource
from bowline.localcluster.kubeconfig import api_server
from bowline.localcluster.workload import LocalProcess, WorkloadOptions
from bowline.testing.builders import bind_request, pod
from tests.live import Live

PODS = Resource("", "v1", "pods", "Pod")
NAME = "bowline-webhook"
NO_DRAIN = WorkloadOptions(extra_args=("--drain=0s",))


@pytest.fixture
def live(pair: Live) -> Live:
    """The running pair."""
    return pair


@pytest.fixture
async def client(live: Live) -> AsyncIterator[KubeClient]:
    """The administrator's access."""
    async with KubeClient(await load_access(api_server(live.cluster.kubeconfig))) as client:
        yield client


def shared_pod(live: Live, annotations: dict[str, str], name: str = "p", **spec: Any) -> dict[str, Any]:
    raw = pod(name, live.namespace, **spec)
    raw["metadata"]["annotations"] = annotations
    return raw


def deployment(live: Live, annotations: dict[str, str], replicas: int = 0) -> dict[str, Any]:
    labels = {"app": "serve"}
    template = {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod()["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serve", "namespace": live.namespace},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def webhook(live: Live) -> LocalProcess:
    assert live.pair.webhook is not None
    return live.pair.webhook


def calls(live: Live, path: str) -> int:
    """Return the number of reviews that the webhook has answered at the path."""
    _, text = webhook(live).get("/metrics")
    lines = [line for line in text.splitlines() if line.startswith("bowline_admission_requests_total{")]
    return sum(int(float(line.split()[-1])) for line in lines if f'hook="{path}"' in line)


async def denial(client: KubeClient, live: Live, resource: Resource, raw: dict[str, Any]) -> ApiStatus:
    with pytest.raises(Invalid) as caught:
        await client.create(resource, live.namespace, raw)
    return caught.value.status


class TestRefusals:
    async def test_an_invalid_pod_is_denied_with_every_error_in_message_and_causes(
        self, live: Live, client: KubeClient
    ) -> None:
        raw = shared_pod(
            live, {names.GPU_FRACTION: "2", names.GPU_MEMORY: "much", names.GPU_FRACTION_NUM_DEVICES: "0"}
        )
        status = await denial(client, live, PODS, raw)
        assert (status.code, status.reason) == (422, "Invalid")
        assert (status.details["kind"], status.details["name"]) == ("Pod", "p")
        *errors, signature = status.causes
        assert signature.field == PRODUCT_FIELD
        assert rules_in((cause.field, cause.reason) for cause in status.causes) == {
            *("gpu_request/fraction-range", "gpu_request/memory-and-fraction", "gpu_request/memory-format"),
            "gpu_request/num-devices-format",
        }
        fields = {cause.field for cause in errors}
        assert fields == {f"metadata.annotations[{key}]" for key in raw["metadata"]["annotations"]}
        assert live.not_found(f"/api/v1/namespaces/{live.namespace}/pods/p")

    def test_kubectl_shows_each_error_once(self, live: Live) -> None:
        live.kubectl("create", "-f", "-", objects=shared_pod(live, {names.GPU_FRACTION: "0.5"}))
        result = live.kubectl("annotate", "pod", "p", f"{names.GPU_FRACTION}=0.4", "--overwrite", check=False)
        assert result.returncode == 1
        assert result.stderr.startswith('The Pod "p" is invalid: \n* metadata.annotations[gpu-fraction]: ')
        assert result.stderr.count("metadata.annotations") == 1

    def test_a_server_side_dry_run_is_validated(self, live: Live) -> None:
        good, bad = (shared_pod(live, {names.GPU_FRACTION: share}) for share in ("0.5", "2"))
        assert live.kubectl("create", "--dry-run=server", "-f", "-", objects=good).returncode == 0
        result = live.kubectl("create", "--dry-run=server", "-f", "-", objects=bad, check=False)
        assert "gpu-fraction" in result.stderr


class TestPasses:
    def test_a_share_for_another_scheduler_passes_with_a_warning(self, live: Live) -> None:
        raw = shared_pod(live, {names.GPU_FRACTION: "2"}, schedulerName="default-scheduler")
        result = live.kubectl("create", "-f", "-", objects=raw)
        assert result.stderr.count("Warning: ") == 1

    @pytest.mark.parametrize("namespace", ["kube-system", "bowline-system"])
    def test_system_namespaces_make_no_call(self, live: Live, namespace: str) -> None:
        before = calls(live, "/mutate/pods"), calls(live, "/validate/pods")
        raw = pod(f"p-{live.namespace}", namespace)
        raw["metadata"]["annotations"] = {names.GPU_FRACTION: "2"}
        live.cluster.kubectl("create", "-f", "-", input=json.dumps(raw))
        live.cluster.kubectl("delete", "pod", f"p-{live.namespace}", f"--namespace={namespace}", "--wait=false")
        assert (calls(live, "/mutate/pods"), calls(live, "/validate/pods")) == before


class TestUpdates:
    def test_an_old_invalid_pod_may_get_no_new_errors(self, live: Live) -> None:
        webhook(live).stop()
        # Without a webhook the mutating hook fails open, the policy validates, the validating hook fails closed.
        bad = live.kubectl("create", "-f", "-", objects=shared_pod(live, {names.GPU_FRACTION: "2"}), check=False)
        assert 'metadata.annotations[gpu-fraction]: "2": must be greater than 0' in bad.stderr
        good = live.kubectl("create", "-f", "-", objects=shared_pod(live, {names.GPU_FRACTION: "0.5"}), check=False)
        assert "failed calling webhook" in good.stderr
        live.kubectl("create", "-f", "-", objects=deployment(live, {names.GPU_FRACTION: "2"}))
        live.pair.launch_webhook(NO_DRAIN).wait_ready()
        before = calls(live, "/validate/workloads")
        live.kubectl("scale", "deployment", "serve", "--replicas=1")
        live.kubectl("annotate", "deployment", "serve", "other=1")
        assert calls(live, "/validate/workloads") == before
        result = live.kubectl("set", "image", "deployment/serve", "main=other:1", check=False)
        assert 'admission webhook "workloads.bowline.dev" denied the request' in result.stderr


class TestBindRequests:
    def test_the_pod_uid_is_filled_in_from_the_owner(self, live: Live) -> None:
        live.create(pod("p"))
        uid = live.pod("p")["metadata"]["uid"]
        live.create(bind_request("p", "gpu-node-0", live.namespace, uid))
        assert live.request("p")["spec"]["podUID"] == uid

    def test_another_decision_is_denied_and_no_other_update_makes_a_call(self, live: Live) -> None:
        """Another project's CRD has no rule against it."""
        live.create(bind_request("p", "gpu-node-0", live.namespace))
        before = calls(live, "/mutate/bindrequests")
        for change in ({"metadata": {"labels": {"touched": "yes"}}}, {"status": {"failedAttempts": 1}}):
            subresource = [f"--subresource={field}" for field in change if field == "status"]
            live.kubectl("patch", "bindrequest", "p", "--type=merge", f"--patch={json.dumps(change)}", *subresource)
        assert calls(live, "/mutate/bindrequests") == before
        decision = json.dumps({"spec": {"selectedNode": "gpu-node-1"}})
        result = live.kubectl("patch", "bindrequest", "p", "--type=merge", f"--patch={decision}", check=False)
        reason = "cannot change: another decision is another request; delete this one and create a new one"
        assert f'spec.selectedNode: "gpu-node-1": {reason} (bindrequest/immutable)' in result.stderr


class TestStart:
    """/readyz reports what is missing at start; the process becomes ready once it exists."""

    def test_without_its_configurations(self, live: Live) -> None:
        for kind in ("mutating", "validating"):
            live.kubectl("delete", f"{kind}webhookconfiguration", NAME)
        process = another(live)
        live.until(
            "it reports the missing configuration", lambda: is_not_ready(process, f"there is no configuration {NAME}")
        )
        live.pair.upgrade()
        process.wait_ready()
        process.stop()


def another(live: Live, *arguments: str) -> LocalProcess:
    """Start one more webhook, which no API server calls."""
    return live.pair._launch(
        "webhook", WorkloadOptions(name="another", extra_args=(*NO_DRAIN.extra_args, *arguments))
    )


def is_not_ready(process: LocalProcess, part: str) -> bool | None:
    """Return whether /readyz reports that the process is not ready for this reason."""
    try:
        status, text = process.get("/readyz")
    except OSError:
        return None
    return status == 503 and part in text
