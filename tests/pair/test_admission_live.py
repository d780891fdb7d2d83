"""Updates of workloads and the webhook's absence on a real API server, with the chart's configurations."""

from bowline.api import names
from bowline.localcluster.workload import WorkloadOptions
from bowline.testing.builders import pod
from tests.live import Live


def test_an_old_invalid_pod_may_get_no_new_errors(pair: Live) -> None:
    def created(fraction: str) -> str:
        raw = pod("p", pair.namespace)
        raw["metadata"]["annotations"] = {names.GPU_FRACTION: fraction}
        return pair.kubectl("create", "-f", "-", objects=raw, check=False).stderr

    assert pair.pair.webhook is not None
    pair.pair.webhook.stop()
    # Without a webhook the mutating hook fails open, the policy validates, the validating hook fails closed.
    assert 'metadata.annotations[gpu-fraction]: "2": must be greater than 0' in created("2")
    assert "failed calling webhook" in created("0.5")
    labels = {"app": "serve"}
    template = {"metadata": {"labels": labels, "annotations": {names.GPU_FRACTION: "2"}}, "spec": pod()["spec"]}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serve"},
        "spec": {"replicas": 0, "selector": {"matchLabels": labels}, "template": template},
    }
    pair.create(deployment)
    webhook = pair.pair.launch_webhook(WorkloadOptions(extra_args=("--drain=0s",)))
    webhook.wait_ready()

    def reviews() -> list[str]:
        lines = webhook.get("/metrics")[1].splitlines()
        return [line for line in lines if line.startswith("bowline_admission_requests_total") and "workloads" in line]

    before = reviews()
    pair.kubectl("scale", "deployment", "serve", "--replicas=1")
    pair.kubectl("annotate", "deployment", "serve", "other=1")
    assert reviews() == before
    result = pair.kubectl("set", "image", "deployment/serve", "main=other:1", check=False)
    assert 'admission webhook "workloads.bowline.dev" denied the request' in result.stderr
