"""The reviews of the measurements: an API server's requests for pods and for a workload with them."""

import json
from collections.abc import Mapping
from typing import Any

from bowline.api import names
from bowline.kube.client import KubeClient
from bowline.kube.resources import PODS, Resource
from bowline.testing.builders import pod

NAMESPACE = "bench"
DRY_RUN = {"dryRun": "All"}
SHARE, PLAIN, LARGE = "GPU share pod, 4.6 KB", "plain pod, 4.6 KB", "pod of 200 KB"
# Complete reviews of pods to be mutated, in bytes; a large one is large because of its environment.
REVIEW_BYTES = {SHARE: 4600, PLAIN: 4600, LARGE: 200_000}
DEPLOYMENTS = Resource("apps", "v1", "deployments", "Deployment")
_LABELS = {"app": "bench"}


def share_pod() -> dict[str, Any]:
    """Return a pod that requests half a GPU: the one with the largest patch."""
    body = pod("share", NAMESPACE)
    body["metadata"]["annotations"] = {names.GPU_FRACTION: "0.5"}
    return body


async def review_bodies(client: KubeClient) -> dict[tuple[str, str], bytes]:
    """Return the review of each kind of pod for each hook, of objects as the API server has them at that point.

    It has added defaults, managedFields (a large part of a large review) and the mutating hook's patch.
    """
    bodies = {}
    for kind, body in {SHARE: share_pod(), PLAIN: pod("plain", NAMESPACE), LARGE: pod("large", NAMESPACE)}.items():
        await fill(client, body, REVIEW_BYTES[kind])
        template = {"metadata": {**body["metadata"], "labels": _LABELS}, "spec": body["spec"]}
        deployment = {
            "apiVersion": DEPLOYMENTS.api_version,
            "kind": DEPLOYMENTS.kind,
            "metadata": {"name": "bench", "namespace": NAMESPACE},
            "spec": {"selector": {"matchLabels": _LABELS}, "template": template},
        }
        bodies["mutate", kind] = _review(await _read_unmutated(client, body))
        bodies["validate", kind] = _review(await client.create(PODS, NAMESPACE, body, params=DRY_RUN))
        bodies["templates", kind] = _review(await client.create(DEPLOYMENTS, NAMESPACE, deployment, params=DRY_RUN))
    return bodies


async def _read_unmutated(client: KubeClient, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod as the mutating hook receives it: the API server leaves another scheduler's unchanged."""
    foreign = {**body, "spec": {**body["spec"], "schedulerName": "other"}}
    stored_pod = await client.create(PODS, NAMESPACE, foreign, params=DRY_RUN)
    stored_pod["spec"]["schedulerName"] = body["spec"]["schedulerName"]
    return stored_pod


async def fill(client: KubeClient, body: dict[str, Any], size: int) -> None:
    """Give the pod an environment that makes the mutating hook's review about that large."""

    async def weight(count: int) -> int:
        env = [{"name": f"SETTING_{number:04}", "value": "x" * 64} for number in range(count)]
        body["spec"]["containers"][0]["env"] = env
        return len(_review(await _read_unmutated(client, body)))

    few, more = await weight(1), await weight(11)
    await weight(max(1, 1 + round((size - few) * 10 / (more - few))))


def check_answer(hook: str, kind: str, answer: str | bytes) -> None:
    """Raise RuntimeError unless the response is the expected one: an error is no figure."""
    response = json.loads(answer)["response"]
    is_changed = hook == "mutate" and kind == SHARE
    if not response["allowed"] or is_changed != ("patch" in response):
        raise RuntimeError(f"{hook} answered a {kind} with {answer[:500]!r}")


def _review(obj: Mapping[str, Any]) -> bytes:
    group, _, version = obj["apiVersion"].rpartition("/")
    kind = {"group": group, "version": version, "kind": obj["kind"]}
    resource = {"group": group, "version": version, "resource": f"{obj['kind'].lower()}s"}
    request = {
        "uid": "5b4a0f3c-0000-4000-8000-000000000000",
        "kind": kind,
        "resource": resource,
        "requestKind": kind,
        "requestResource": resource,
        "name": obj["metadata"]["name"],
        "namespace": NAMESPACE,
        "operation": "CREATE",
        "userInfo": {"username": "bench", "groups": ["system:authenticated"]},
        "object": obj,
        "oldObject": None,
        "dryRun": False,
        "options": {"apiVersion": "meta.k8s.io/v1", "kind": "CreateOptions"},
    }
    review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    return json.dumps(review, separators=(",", ":")).encode()
