"""Runs the pods of Jobs and of Helm's tests as local processes, as a kubelet would, and reports how they ended.

The Job controller is the real one: it creates the pods and derives the Job's status from theirs. The processes are
those that the pod names (see `workload`). Not covered: the image, resource limits, security contexts, `kubectl logs`.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalClusterError
from bowline.localcluster.podsplace import has_pods_place
from bowline.localcluster.workload import WorkloadOptions, start_pod

_LABEL, _HOOK = "batch.kubernetes.io/job-name", "helm.sh/hook"
_POLL_S = 0.1
_END_S = 120.0


@contextmanager
def running_jobs(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Run every pod that a Job or Helm creates in the namespace, until the block ends; raises what was not run."""
    stop = threading.Event()
    failures: list[Exception] = []

    def run() -> None:
        while not stop.wait(_POLL_S):
            try:
                for pod in _pending_pods(cluster, namespace):
                    _run_pod(cluster, namespace, pod)
            except LocalClusterError as error:
                failures.append(error)
                return

    thread = threading.Thread(target=run, name=f"jobs of {namespace}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failures:
        raise failures[0]


def _pending_pods(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    pods: list[dict[str, Any]] = cluster.api.get(f"/api/v1/namespaces/{namespace}/pods")["items"]
    return [
        pod
        for pod in pods
        if (_LABEL in pod["metadata"]["labels"] or _is_hook(pod))
        and pod["status"].get("phase") == "Pending"
        and not pod["metadata"].get("deletionTimestamp")
    ]


def _is_hook(pod: dict[str, Any]) -> bool:
    return _HOOK in pod["metadata"].get("annotations", {})


def _run_pod(cluster: Cluster, namespace: str, pod: dict[str, Any]) -> None:
    """Run the containers side by side; the pod has succeeded if all of them exited with 0."""
    name, spec = pod["metadata"]["name"], pod["spec"]
    in_pod = _is_hook(pod) and has_pods_place()
    processes = {
        container["name"]: start_pod(
            cluster,
            namespace,
            spec,
            WorkloadOptions(name=f"{name}-{container['name']}", container=container["name"], in_pod=in_pod),
        )
        for container in spec["containers"]
    }
    statuses = []
    for container in spec["containers"]:
        process = processes[container["name"]]
        if not process.wait(_END_S):
            raise LocalClusterError(f"{process.name} has not ended after {_END_S:g} s:\n{process.process.tail()}")
        termination = {"exitCode": process.returncode, "message": process.log.read_text()}
        state = {"terminated": termination | {"reason": "Error" if process.returncode else "Completed"}}
        image = {"image": container["image"], "imageID": ""}
        statuses.append({"name": container["name"], "state": state, "ready": False, "restartCount": 0, **image})
    has_failed = any(process.returncode for process in processes.values())
    status = {"phase": "Failed" if has_failed else "Succeeded", "containerStatuses": statuses}
    cluster.api.patch(f"/api/v1/namespaces/{namespace}/pods/{name}/status", {"status": status})
