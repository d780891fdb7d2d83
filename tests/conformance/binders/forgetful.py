"""A wrong binder: what was created while it did not run is lost, because it only follows its watch."""

from typing import Any

from kubernetes import client, config, watch

config.load_config()  # type: ignore[no-untyped-call]
core = client.CoreV1Api()
custom: Any = client.CustomObjectsApi()
GROUP, VERSION, PLURAL = "scheduling.run.ai", "v1alpha2", "bindrequests"
version = custom.list_cluster_custom_object(GROUP, VERSION, PLURAL)["metadata"]["resourceVersion"]
stream = watch.Watch().stream(  # type: ignore[no-untyped-call]
    custom.list_cluster_custom_object, GROUP, VERSION, PLURAL, resource_version=version
)
for event in stream:
    if event["type"] != "ADDED":
        continue
    name, namespace = (event["object"]["metadata"][key] for key in ("name", "namespace"))
    spec = event["object"]["spec"]
    target = client.V1ObjectReference(kind="Node", name=spec["selectedNode"])
    binding = client.V1Binding(metadata=client.V1ObjectMeta(name=spec["podName"]), target=target)
    core.create_namespaced_pod_binding(spec["podName"], namespace, binding, _preload_content=False)
    succeeded = {"status": {"phase": "Succeeded"}}
    custom.patch_namespaced_custom_object_status(GROUP, VERSION, namespace, PLURAL, name, succeeded)
