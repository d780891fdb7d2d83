"""Admission on a real API server: the chart's configurations, the webhook's verdicts, and the stored objects."""

from typing import Any

import pytest

from bowline.api import names
from bowline.localcluster.workload import LocalProcess, WorkloadOptions
from bowline.testing.builders import pod
from tests.live import Live

NAME = "bowline-webhook"
NO_DRAIN = WorkloadOptions(extra_args=("--drain=0s",))


@pytest.fixture
def live(pair: Live) -> Live:
    """The running pair."""
    return pair


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


def test_without_its_configurations_it_is_not_ready_and_says_so(live: Live) -> None:
    for kind in ("mutating", "validating"):
        live.kubectl("delete", f"{kind}webhookconfiguration", NAME)
    # One more webhook, which no API server calls.
    process = live.pair._launch("webhook", WorkloadOptions(name="another", extra_args=NO_DRAIN.extra_args))

    def reported() -> bool:
        try:
            status, text = process.get("/readyz")
        except OSError:
            return False
        return status == 503 and f"there is no configuration {NAME}" in text

    live.until("it reports the missing configuration", reported)
    live.pair.upgrade()
    process.wait_ready()
    process.stop()
