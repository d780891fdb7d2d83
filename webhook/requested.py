"""Pods with an unfinished BindRequest, for plugins that guard Bindings.

Watches the unfinished requests and keeps only each pod's name. While the watch is interrupted the set is empty: stale
entries would deny Bindings of pods whose requests were deleted long ago.
"""

from collections.abc import Container
from typing import Any

from shared.api.bindrequest import Phase
from shared.api.meta import Object, ObjectKey, key_of
from shared.kube.client import KubeClient
from shared.kube.reflector import EventType, Reflector
from shared.kube.resources import BINDREQUESTS, Selection

_NOBODY: frozenset[ObjectKey] = frozenset()


def transform_request(request: dict[str, Any]) -> Object | None:
    """Transform: keep a request's identity and its pod's name; None if it has Succeeded or names no pod."""
    metadata, spec = request["metadata"], request.get("spec")
    pod = spec.get("podName") if isinstance(spec, dict) else None
    if (request.get("status") or {}).get("phase") == Phase.SUCCEEDED.value or not isinstance(pod, str):
        return None
    kept = {key: metadata[key] for key in ("namespace", "name", "uid", "resourceVersion")}
    return {"metadata": kept, "spec": {"podName": pod}}


def requested_pod(request: Object) -> ObjectKey:
    """Return the pod that a cached request is for."""
    return ObjectKey(key_of(request).namespace, request["spec"]["podName"])


class PodsWithBindRequest:
    """The watched set of pods."""

    def __init__(self, client: KubeClient) -> None:
        self._requests: dict[ObjectKey, set[ObjectKey]] = {}
        self.reflector = Reflector(
            client,
            Selection(BINDREQUESTS, field_selector=f"status.phase!={Phase.SUCCEEDED.value}"),
            on_event=self._on_event,
            transform=transform_request,
            # The CRD of another project has no selectable fields.
            fallback=Selection(BINDREQUESTS),
        )

    def current(self) -> Container[ObjectKey]:
        """Return the pods; none while the watch is not healthy."""
        return self._requests if self.reflector.last_error is None else _NOBODY

    def _on_event(self, _: EventType, key: ObjectKey, old: Object | None, new: Object | None) -> None:
        if old is not None:
            pod = requested_pod(old)
            requests = self._requests.get(pod, set())
            requests.discard(key)
            if not requests:
                self._requests.pop(pod, None)
        if new is not None:
            self._requests.setdefault(requested_pod(new), set()).add(key)
