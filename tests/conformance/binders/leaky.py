"""A wrong binder: it reserves the device of a share and never releases it."""

import time
from typing import Any

from kubernetes import client, config

config.load_config()  # type: ignore[no-untyped-call]
core = client.CoreV1Api()
custom: Any = client.CustomObjectsApi()
GROUP, VERSION, PLURAL = "scheduling.run.ai", "v1alpha2", "bindrequests"
NAMESPACE = "kai-resource-reservation"
reserved: set[str] = set()
while True:
    for request in custom.list_cluster_custom_object(GROUP, VERSION, PLURAL)["items"]:
        for group in set(request["spec"].get("selectedGPUGroups", [])) - reserved:
            metadata = client.V1ObjectMeta(
                name=f"gpu-reservation-{group}", labels={"app": NAMESPACE, "runai-gpu-group": group}
            )
            container = client.V1Container(name="resource-reservation", image="registry.example/agent:1")
            spec = client.V1PodSpec(containers=[container], node_name=request["spec"]["selectedNode"])
            core.create_namespaced_pod(NAMESPACE, client.V1Pod(metadata=metadata, spec=spec))
            labels = {"metadata": {"labels": {"runai-gpu-group": group}}}
            core.patch_namespaced_pod(request["spec"]["podName"], request["metadata"]["namespace"], labels)
            reserved.add(group)
    time.sleep(0.1)
