"""A test's view of a running pair: apply objects, wait for conditions, read objects.

Waiting is for conditions with a deadline; nothing here sleeps a fixed time or asserts durations.
"""

import json
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.pair import Pair
from bowline.testing.builders import bind_request, pod
from tests.waiting import LIMIT_S, pause_s

# How many attempts of a pod fail, by the example plugin `flaky`.
FLAKY = "example.bowline.dev/fail-attempts"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LiveCluster:
    """A namespace on a cluster where the CRD is installed."""

    cluster: Cluster
    namespace: str

    # --- writes ---

    def kubectl(self, *args: str, objects: Any = None, check: bool = True) -> "subprocess.CompletedProcess[str]":
        """Run kubectl in the namespace; ``objects`` are given as JSON on its standard input."""
        text = None if objects is None else _stream(objects)
        return self.cluster.kubectl(f"--namespace={self.namespace}", *args, input=text, check=check)

    def create(self, *objects: Mapping[str, Any]) -> None:
        """Create objects in this namespace; unknown fields are errors. A kubectl process for each would cost CPU."""
        paths: dict[tuple[str, str], str] = {}
        for body in objects:
            kind = body["apiVersion"], body["kind"]
            path = paths[kind] = paths.get(kind) or self._collection(*kind)
            namespaced = {**body, "metadata": {**body["metadata"], "namespace": self.namespace}}
            self.cluster.api.post(f"{path}?fieldValidation=Strict", namespaced)

    def _collection(self, version: str, kind: str) -> str:
        """The API path of the objects of this kind in the namespace."""
        group_path = f"/apis/{version}" if "/" in version else f"/api/{version}"
        resources = self.cluster.api.get(group_path)["resources"]
        plurals = [entry["name"] for entry in resources if entry["kind"] == kind and "/" not in entry["name"]]
        return f"{group_path}/namespaces/{self.namespace}/{plurals[0]}"

    def create_pod(self, name: str = "pod", annotations: Mapping[str, str] | None = None, **spec: Any) -> str:
        """Create an unbound pod; returns its UID."""
        body = pod(name, self.namespace, **spec)
        if annotations:
            body["metadata"]["annotations"] = dict(annotations)
        self.create(body)
        return str(self.pod(name)["metadata"]["uid"])

    def request_bind(self, name: str = "pod", node: str = "gpu-node-0", uid: str = "", **spec: Any) -> None:
        """Create the BindRequest of a pod, owned by it as a scheduler's are."""
        owner = uid or str(self.pod(name)["metadata"]["uid"])
        self.create(bind_request(name, node, self.namespace, owner, **spec))

    # --- reads ---

    def pod(self, name: str = "pod") -> dict[str, Any]:
        """The pod as stored."""
        stored_pod: dict[str, Any] = self.cluster.api.get(f"/api/v1/namespaces/{self.namespace}/pods/{name}")
        return stored_pod

    def request(self, name: str = "pod") -> dict[str, Any]:
        """The BindRequest as stored."""
        stored_request: dict[str, Any] = self.cluster.api.get(self.request_path(name))
        return stored_request

    def request_path(self, name: str = "pod") -> str:
        """The API path of the BindRequest."""
        return f"/apis/{names.API_VERSION}/namespaces/{self.namespace}/{names.PLURAL}/{name}"

    def events(self, name: str = "pod") -> list[tuple[str, str]]:
        """Reason and note of Bowline's events about a pod, or a request without a pod, oldest first."""
        items = self.cluster.api.get(f"/apis/events.k8s.io/v1/namespaces/{self.namespace}/events")["items"]
        ours = [e for e in items if e.get("reportingController") == names.EVENT_SOURCE]
        # Those about a request repeat those about its pod.
        first = [e for e in ours if e["regarding"]["kind"] != "BindRequest" or not e.get("related")]
        mine = [e for e in first if e["regarding"].get("name") == name]
        mine.sort(key=lambda event: event["eventTime"])
        return [(event["reason"], event["note"]) for event in mine]

    def not_found(self, path: str) -> bool:
        """Whether the API server replies 404 to a GET of the path."""
        try:
            self.cluster.api.get(path)
        except LocalApiError as error:
            return error.status == 404
        return False

    # --- waiting ---

    def phase(self, name: str, *phases: str) -> dict[str, Any]:
        """Wait until the request is in one of the phases; returns it."""

        def request_in_phase() -> dict[str, Any] | None:
            request = self.request(name)
            return request if (request.get("status") or {}).get("phase") in phases else None

        return self.until(f"request {name} is {' or '.join(phases)}", request_in_phase)

    def event(self, name: str, reason: str) -> str:
        """Wait for an event about the object; returns its note."""
        return self.until(
            f"event {reason} about {name}",
            lambda: next((note for event_reason, note in self.events(name) if event_reason == reason), None),
        )

    def until_allowed(self, user: str, verb: str, resource: str, *, group: str = "", is_allowed: bool = True) -> None:
        """Wait until the API server, which watches roles and bindings, decides so about the user in the namespace."""
        attributes = {"namespace": self.namespace, "verb": verb, "group": group, "resource": resource}
        body = {"spec": {"user": user, "resourceAttributes": attributes}}
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        self.until(
            f"{user} is {'allowed' if is_allowed else 'denied'}: {verb} {resource}",
            lambda: self.cluster.api.post(path, body)["status"]["allowed"] is is_allowed,
        )

    def until(self, description: str, condition: Callable[[], T | None], limit_s: float = LIMIT_S) -> T:
        """Wait until ``condition`` returns a result; fails with the last log lines of the processes."""
        began = time.monotonic()
        while (result := condition()) is None or result is False:
            if time.monotonic() > began + limit_s:
                raise AssertionError(f"waited {limit_s:g} s for: {description}\n{self.cluster.log_tails(15)}")
            time.sleep(pause_s(began))
        return result


@dataclass(frozen=True, slots=True)
class Live(LiveCluster):
    """The same where the chart is installed and the pair is running."""

    pair: Pair


def _stream(objects: Any) -> str:
    return "\n".join(json.dumps(o) for o in (objects if isinstance(objects, list) else [objects]))
