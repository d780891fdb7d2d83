"""Checks of a plugin's admission by a real API server. Each yields a sentence per mistake."""

import uuid
from collections.abc import AsyncIterator
from typing import Any

from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.denial import Denial
from bowline.localcluster.errors import LocalApiError
from bowline.testing.lab import Lab
from bowline.testing.subject import Subject


async def is_admitted_as_changed(lab: Lab, subject: Subject) -> AsyncIterator[str]:
    """The API server admits the pods as mutate_pod leaves them.

    It has set its own defaults before it calls a webhook, and compares them with the changes: for example a priority
    class with the priority that was computed before. What a rule of the plugin denies is no mistake.
    """
    plain_namespace, reviewed_namespace = (f"test-{uuid.uuid4().hex[:8]}" for _ in range(2))
    lab.cluster.make_namespace(plain_namespace)
    lab.webhook.make_namespace(reviewed_namespace, subject)
    async with KubeClient(lab.access, ClientOptions(name="bowline-conformance")) as admin:
        for namespace in (plain_namespace, reviewed_namespace):
            for resource, body in subject.objects_in(namespace):
                await admin.create(resource, body["metadata"].get("namespace", ""), body)
    for pod in subject.samples():
        text = "" if _denial(lab, plain_namespace, pod) else _denial(lab, reviewed_namespace, pod)
        if text and not Denial.of(text).webhook:
            yield f"the API server denies the pod as mutate_pod leaves it: {text}; it set its own defaults before"


def _denial(lab: Lab, namespace: str, pod: dict[str, Any]) -> str:
    """Return why the API server does not create the pod; empty if it would."""
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
    try:
        metadata = {**pod["metadata"], "namespace": namespace}
        lab.cluster.api.post(path, {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": metadata})
    except LocalApiError as error:
        return str(error)
    return ""
