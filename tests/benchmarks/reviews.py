"""The reviews of the measurements: an API server's requests for a pod with a share."""

import json
from collections.abc import Mapping
from typing import Any

from bowline.api import names
from bowline.kube.client import KubeClient
from bowline.kube.resources import PODS
from bowline.testing.builders import pod

NAMESPACE = "bench"
DRY_RUN = {"dryRun": "All"}
# A complete review of a pod to be mutated, in bytes.
REVIEW_BYTES = 4600


def share_pod() -> dict[str, Any]:
    """Return a pod that requests half a GPU: the one with the largest patch."""
    body = pod("share", NAMESPACE)
    body["metadata"]["annotations"] = {names.GPU_FRACTION: "0.5"}
    return body


async def review_bodies(client: KubeClient, body: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the review of a pod for each hook, of the pod as the API server has it at that point.

    It has added defaults, managedFields and the mutating hook's patch.
    """
    return {
        "mutate": _review(await _read_unmutated(client, body)),
        "validate": _review(await client.create(PODS, NAMESPACE, body, params=DRY_RUN)),
    }


async def _read_unmutated(client: KubeClient, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the pod as the mutating hook receives it: the API server leaves another scheduler's unchanged."""
    foreign = {**body, "spec": {**body["spec"], "schedulerName": "other"}}
    stored_pod = await client.create(PODS, NAMESPACE, foreign, params=DRY_RUN)
    stored_pod["spec"]["schedulerName"] = body["spec"]["schedulerName"]
    return stored_pod


async def filled(client: KubeClient, body: dict[str, Any]) -> dict[str, Any]:
    """Give the pod an environment that makes the mutating hook's review about REVIEW_BYTES large; return it."""

    async def weight(count: int) -> int:
        env = [{"name": f"SETTING_{number:04}", "value": "x" * 64} for number in range(count)]
        body["spec"]["containers"][0]["env"] = env
        return len(_review(await _read_unmutated(client, body)))

    few, more = await weight(1), await weight(11)
    await weight(max(1, 1 + round((REVIEW_BYTES - few) * 10 / (more - few))))
    return body


def check_answer(answer: str | bytes, *, is_patched: bool) -> None:
    """Raise RuntimeError unless the response is the expected one: an error is no figure."""
    response = json.loads(answer)["response"]
    if not response["allowed"] or is_patched != ("patch" in response):
        raise RuntimeError(f"a hook answered with {answer[:500]!r}")


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
