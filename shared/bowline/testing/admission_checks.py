"""Checks of a plugin's admission by a real API server. Each yields a sentence per mistake."""

import copy
import uuid
from collections.abc import AsyncIterator
from typing import Any

from bowline.framework.admission import AdmissionChain
from bowline.framework.config import Settings
from bowline.framework.plugin import AdmissionInfo
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.resources import NAMESPACES
from bowline.localcluster.errors import LocalApiError
from bowline.testing.lab import REVIEW, VOLATILE, Lab
from bowline.testing.subject import Subject


async def is_admitted_as_changed(lab: Lab, subject: Subject) -> AsyncIterator[str]:
    """The API server admits the pods as mutate_pod leaves them.

    It has set its own defaults before it calls a webhook, and compares them with the changes: for example a priority
    class with the priority that was computed before.
    """
    namespace = f"test-{uuid.uuid4().hex[:8]}"
    async with KubeClient(lab.access, ClientOptions(name="bowline-conformance")) as admin:
        await admin.create(NAMESPACES, "", {"metadata": {"name": namespace}})
        for resource, body in subject.objects_in(namespace):
            await admin.create(resource, body["metadata"].get("namespace", ""), body)
    for sample in subject.samples():
        pod = copy.deepcopy(sample)
        pod["metadata"]["namespace"] = namespace
        try:
            before = _admitted(lab, pod)
            _admitted(lab, before)
        except LocalApiError:
            continue  # with or without the plugin
        changed = copy.deepcopy(before)
        info = AdmissionInfo(namespace=namespace, request_uid=REVIEW)
        AdmissionChain(subject.chain()[1], Settings()).admit_pod(changed, info)
        try:
            _admitted(lab, changed)
        except LocalApiError as error:
            yield f"the API server denies the pod as mutate_pod leaves it: {error}; it set its own defaults before"


def _admitted(lab: Lab, pod: dict[str, Any]) -> dict[str, Any]:
    """Return the pod as the API server would store it, ready to be sent again. Raises LocalApiError."""
    path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods?dryRun=All"
    stored: dict[str, Any] = lab.cluster.api.post(path, {"apiVersion": "v1", "kind": "Pod", **pod})
    metadata = {key: value for key, value in stored["metadata"].items() if key not in VOLATILE}
    return {**stored, "metadata": metadata, "status": {}}
