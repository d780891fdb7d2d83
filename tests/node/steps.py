"""What tests do on the node: pods that really run, their output, and the reservation pods."""

import ast
import json
from typing import Any

from bowline.api import names
from bowline.testing.builders import pod
from tests.live import LiveCluster
from tests.localnode.images import BOWLINE_IMAGE
from tests.localnode.settings import NODE_NAME

_SLEEP = "import os, time; print(dict(os.environ), flush=True); time.sleep(3600)"


class NodeLive(LiveCluster):
    """A namespace on the node's cluster."""

    def run_pod(
        self,
        name: str,
        annotations: dict[str, str] | None = None,
        limits: dict[str, str] | None = None,
        program: str = _SLEEP,
        **spec: Any,
    ) -> str:
        """Create a pod that prints its environment and sleeps, unbound by default. Returns its UID."""
        container = {
            "name": "main",
            "image": BOWLINE_IMAGE,
            "command": ["python", "-c", program],
            **({"resources": {"limits": limits}} if limits else {}),
            **spec.pop("container", {}),
        }
        body = {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container], **spec}
        return self.create_pod(name, annotations, **body)

    def denial(self, name: str, annotations: dict[str, str]) -> str:
        """Return the API server's message for a pod that it must reject."""
        body = pod(name, self.namespace)
        body["metadata"]["annotations"] = annotations
        result = self.kubectl("create", "-f", "-", objects=body, check=False)
        assert result.returncode != 0, "the pod was admitted"
        return result.stderr

    def bind(self, name: str, **spec: Any) -> None:
        """Create the BindRequest that a scheduler would write for the pod."""
        self.request_bind(name, NODE_NAME, **spec)

    def bind_share(self, name: str, portion: str, *groups: str, **spec: Any) -> None:
        """The same for a share of one device per group."""
        gpu = {"count": len(groups), "portion": portion}
        self.bind(name, receivedResourceType="Fraction", receivedGPU=gpu, selectedGPUGroups=list(groups), **spec)

    def running(self, name: str) -> dict[str, Any]:
        """Wait until the pod's container runs; fails with the pod's status if it has ended. Returns the pod."""

        def pod_if_running() -> dict[str, Any] | None:
            pod = self.pod(name)
            phase = pod["status"].get("phase")
            assert phase not in ("Failed", "Succeeded"), f"pod {name} ended: {json.dumps(pod['status'])}"
            return pod if phase == "Running" else None

        return self.until(f"pod {name} is running", pod_if_running)

    def output(self, name: str, expected: str) -> str:
        """Wait until the container has printed a text; returns all of its output."""
        return self.until(
            f"pod {name} prints {expected}",
            lambda: text if expected in (text := self.kubectl("logs", name, check=False).stdout) else None,
        )

    def environment(self, name: str) -> dict[str, str]:
        """The environment that the container's program printed."""
        text = self.output(name, "}")
        environment: dict[str, str] = json.loads(json.dumps(ast.literal_eval(text.strip().splitlines()[0])))
        return environment

    def reservations(self) -> str:
        """The reservation pods, as a JSON list."""
        path = f"/api/v1/namespaces/{names.RESERVATION_APP}/pods"
        return json.dumps([] if self.not_found(path) else self.cluster.api.get(path)["items"])
