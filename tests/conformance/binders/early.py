"""A wrong binder: it reports Succeeded and writes the event Bound before it binds, and whether it can bind or not."""

import time
from typing import Any

from kubernetes import client, config

config.load_config()  # type: ignore[no-untyped-call]
core = client.CoreV1Api()
custom: Any = client.CustomObjectsApi()
GROUP, VERSION, PLURAL = "scheduling.run.ai", "v1alpha2", "bindrequests"
while True:
    for request in custom.list_cluster_custom_object(GROUP, VERSION, PLURAL)["items"]:
        name, namespace, spec = request["metadata"]["name"], request["metadata"]["namespace"], request["spec"]
        if "phase" in request.get("status", {}):
            continue
        succeeded = {"status": {"phase": "Succeeded"}}
        custom.patch_namespaced_custom_object_status(GROUP, VERSION, namespace, PLURAL, name, succeeded)
        # As a client of core/v1 writes it: without an eventTime.
        about = client.V1ObjectReference(api_version="v1", kind="Pod", name=spec["podName"], namespace=namespace)
        metadata = client.V1ObjectMeta(generate_name=f"{name}-")
        event = client.CoreV1Event(involved_object=about, metadata=metadata, reason="Bound", type="Normal")
        core.create_namespaced_event(namespace, event, _preload_content=False)
        target = client.V1ObjectReference(kind="Node", name=spec["selectedNode"])
        binding = client.V1Binding(metadata=client.V1ObjectMeta(name=spec["podName"]), target=target)
        try:
            core.create_namespaced_pod_binding(spec["podName"], namespace, binding, _preload_content=False)
        except client.ApiException as error:
            if error.status not in (404, 409, 422):
                raise
    time.sleep(0.1)
