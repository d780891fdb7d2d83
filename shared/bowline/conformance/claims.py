"""What the program reports of a bind, compared with the pod at the moment of the report; and that it stays.

Reports are the phase Succeeded, the pod condition PodBound=True and the event Bound. A thread follows each watch and
reads the pod live for each new report: a report that becomes true later is false now. Pods that no longer exist are
not judged.
"""

import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

from kubernetes import client, config, watch

from bowline.api import names
from bowline.conformance.binder import BinderCluster

_WATCH_S = 1


class ClaimObserver:
    """Observes one namespace inside its block; ``false`` lists the false reports."""

    def __init__(self, cluster: BinderCluster, namespace: str) -> None:
        self.false: list[str] = []
        self._namespace = namespace
        self._error: BaseException | None = None
        self._api: client.ApiClient = config.new_client_from_config(str(cluster.cluster.kubeconfig))  # type: ignore[no-untyped-call]
        self._core = client.CoreV1Api(self._api)
        self._stop = threading.Event()
        custom = client.CustomObjectsApi(self._api)
        self._seen: set[tuple[str, str]] = set()
        self._final_phases: dict[str, str] = {}
        self._threads = [
            threading.Thread(target=self._follow, args=(lister, arguments, judge), daemon=True)
            for lister, arguments, judge in (
                (self._core.list_namespaced_pod, (namespace,), self._judge_pod),
                (
                    custom.list_namespaced_custom_object,
                    # Raw: the model of an Event rejects those that are written in core/v1, without an eventTime.
                    ("events.k8s.io", "v1", namespace, "events"),
                    self._judge_event,
                ),
                (
                    custom.list_namespaced_custom_object,
                    (names.GROUP, names.VERSION, namespace, names.PLURAL),
                    self._judge_request,
                ),
            )
        ]

    def __enter__(self) -> "ClaimObserver":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._api.close()  # type: ignore[no-untyped-call]
        if self._error is not None:
            raise RuntimeError("the observer has failed, so the reports were not judged") from self._error

    def _follow(
        self, lister: Callable[..., Any], arguments: tuple[str, ...], judge: Callable[[dict[str, Any]], str]
    ) -> None:
        is_last = False
        while not is_last and self._error is None:
            # Read before the watch: the last one runs after the end of the case, and shows its last reports.
            is_last = self._stop.is_set()
            try:
                self.false += filter(None, map(judge, self._items(lister, arguments)))
            except Exception as error:  # noqa: BLE001 - raised at the end of the block
                self._error = error

    def _items(self, lister: Callable[..., Any], arguments: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        # Without a resourceVersion a watch begins with all present objects.
        stream = watch.Watch().stream(lister, *arguments, timeout_seconds=_WATCH_S)  # type: ignore[no-untyped-call]
        for event in stream:
            raw: dict[str, Any] = event["raw_object"]
            yield raw

    def _judge_pod(self, pod: dict[str, Any]) -> str:
        conditions = (pod.get("status") or {}).get("conditions") or ()
        is_claimed = any(c["type"] == names.CONDITION_POD_BOUND and c["status"] == "True" for c in conditions)
        if is_claimed and not pod["spec"].get("nodeName"):
            return f"condition PodBound=True on pod {pod['metadata']['name']}, which is on no node"
        return ""

    def _judge_event(self, event: dict[str, Any]) -> str:
        regarding = event.get("regarding") or event.get("involvedObject") or {}
        if event.get("reason") != names.EVENT_BOUND or regarding.get("kind") != "Pod":
            return ""
        return self._judge("event Bound", event["metadata"]["uid"], regarding.get("name", ""), "")

    def _judge_request(self, request: dict[str, Any]) -> str:
        phase, uid = (request.get("status") or {}).get("phase") or "Pending", request["metadata"]["uid"]
        final = self._final_phases.get(uid)
        if final is not None and phase != final:
            return f"phase {final} of request {request['metadata']['name']} has become {phase}; it is final"
        if phase in ("Succeeded", "Failed"):
            self._final_phases[uid] = phase
        if phase != "Succeeded":
            return ""
        spec = request["spec"]
        return self._judge("phase Succeeded", uid, spec["podName"], spec["selectedNode"])

    def _judge(self, what: str, uid: str, pod_name: str, node: str) -> str:
        """Return why the report is false; empty if it is true, was judged before, or its pod no longer exists."""
        if (what, uid) in self._seen:
            return ""
        self._seen.add((what, uid))
        try:
            pod = self._core.read_namespaced_pod(pod_name, self._namespace)
        except client.ApiException as error:
            if error.status == 404:
                return ""
            raise
        actual = (pod.spec.node_name if pod.spec else "") or ""
        if actual and node in ("", actual):
            return ""
        return f"{what} of pod {pod_name}, which is on {f'node {actual}' if actual else 'no node'}"
