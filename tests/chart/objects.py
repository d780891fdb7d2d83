"""Pods, workloads and their API paths: the smallest objects that the API server accepts."""

from collections.abc import Mapping
from typing import Any

from bowline.api import names

PODS = "/api/v1/namespaces/default/pods"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
DAEMON_SETS = "/apis/apps/v1/namespaces/default/daemonsets"
STATEFUL_SETS = "/apis/apps/v1/namespaces/default/statefulsets"
REPLICA_SETS = "/apis/apps/v1/namespaces/default/replicasets"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
CRON_JOBS = "/apis/batch/v1/namespaces/default/cronjobs"
REQUESTS = f"/apis/{names.API_VERSION}/namespaces/default/{names.PLURAL}"
FRACTION = {names.GPU_FRACTION: "0.5"}
IMAGE = {"name": "main", "image": "example.com/main"}


def pod(name: str, scheduler: str = "", annotations: Mapping[str, str] | None = None, **metadata: Any) -> Any:
    body: dict[str, Any] = {"metadata": {"name": name, **metadata}, "spec": {"containers": [IMAGE]}}
    if scheduler:
        body["spec"]["schedulerName"] = scheduler
    if annotations is not None:
        body["metadata"]["annotations"] = dict(annotations)
    return body


MIRROR_POD = pod("a", "example-scheduler", {**FRACTION, names.MIRROR_POD: "x"})
MIRROR_POD["spec"]["nodeName"] = "gpu-node-0"


def template(scheduler: str, annotations: Mapping[str, str] | None = None, restart: str = "Always") -> Any:
    made = pod("", scheduler, annotations, labels={"app": "x"})
    del made["metadata"]["name"]
    made["spec"]["restartPolicy"] = restart
    return made


def workload(name: str, scheduler: str = "example-scheduler", annotations: Any = None, **metadata: Any) -> Any:
    """A Deployment, ReplicaSet, StatefulSet or DaemonSet: all four have these fields."""
    selector = {"matchLabels": {"app": "x"}}
    return {
        "metadata": {"name": name, **metadata},
        "spec": {"selector": selector, "template": template(scheduler, annotations)},
    }


def with_environment(made: Any, variables: int) -> Any:
    """Give the template that many environment variables."""
    env = [{"name": f"VARIABLE_{index}", "value": "x" * 100} for index in range(variables)]
    made["spec"]["template"]["spec"]["containers"] = [{**IMAGE, "env": env}]
    return made


def job(name: str, scheduler: str = "example-scheduler", **metadata: Any) -> Any:
    return {"metadata": {"name": name, **metadata}, "spec": {"template": template(scheduler, restart="Never")}}


BARE_JOB = {
    "metadata": {"name": "a"},
    "spec": {"template": {"spec": {"containers": [IMAGE], "restartPolicy": "Never"}}},
}


def cron_job(name: str, scheduler: str = "example-scheduler") -> Any:
    spec_of_job = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": job("", scheduler)["spec"]}}
    return {"metadata": {"name": name}, "spec": spec_of_job}


def owned_by(api_version: str, kind: str, *, controller: bool = True) -> list[dict[str, Any]]:
    owner = {"apiVersion": api_version, "kind": kind, "name": "owner", "uid": "11111111-2222-4333-8444-555555555555"}
    return [owner | ({"controller": True} if controller else {})]


def image_changed(path: str) -> tuple[str, Any]:
    return path, {"spec": {"template": {"spec": {"containers": [{**IMAGE, "image": "example.com/new"}]}}}}
