"""A bind is reported only after the pod was read: an admission policy of somebody else may change a Binding."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from bowline.kube.resources import PODS, Resource
from bowline.testing.builders import pod
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import until_awaited

_GROUP = "admissionregistration.k8s.io"
POLICIES = Resource(_GROUP, "v1", "mutatingadmissionpolicies", "MutatingAdmissionPolicy", namespaced=False)
POLICY_BINDINGS = Resource(
    _GROUP, "v1", "mutatingadmissionpolicybindings", "MutatingAdmissionPolicyBinding", namespaced=False
)


@asynccontextmanager
async def changed_bindings(stage: Stage, mutation: Mapping[str, Any]) -> AsyncIterator[None]:
    """A policy that changes every Binding of the test's namespace; it is in force inside the block."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    name = f"change-{stage.namespace}"
    body = {
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {
                "resourceRules": [rule],
                "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": stage.namespace}},
            },
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "mutations": [mutation],
        },
    }
    await stage.client.create(POLICIES, "", body)
    await stage.client.create(POLICY_BINDINGS, "", {"metadata": {"name": name}, "spec": {"policyName": name}})
    try:
        await until_awaited(lambda: _is_in_force(stage), bool)
        yield
    finally:
        await stage.client.delete(POLICY_BINDINGS, "", name)
        await stage.client.delete(POLICIES, "", name)


async def _is_in_force(stage: Stage) -> bool:
    """Bind a probe to node 1, and return whether it is bound otherwise."""
    await stage.client.create(PODS, stage.namespace, pod("probe", stage.namespace, schedulerName="probe"))
    target = {"apiVersion": "v1", "kind": "Node", "name": "gpu-node-1"}
    body = {"metadata": {"name": "probe", "annotations": {"example.com/probe": "yes"}}, "target": target}
    await stage.client.create(PODS, stage.namespace, body, name="probe", subresource="binding")
    stored_pod = await stage.pod("probe")
    await stage.delete_pod("probe")
    is_elsewhere = stored_pod["spec"]["nodeName"] != "gpu-node-1"
    return is_elsewhere or "example.com/probe" not in (stored_pod["metadata"].get("annotations") or {})


def patching(operation: str) -> dict[str, Any]:
    """The mutation of a policy that applies one operation of a JSON patch."""
    return {"patchType": "JSONPatch", "jsonPatch": {"expression": f"[JSONPatch{{{operation}}}]"}}


ELSEWHERE = patching('op: "replace", path: "/target/name", value: "gpu-node-2"')


async def test_a_bind_that_goes_elsewhere_is_reported_and_released(stage: Stage) -> None:
    plugin = Scripted(effects=True)
    async with changed_bindings(stage, ELSEWHERE), stage.working(plugin):
        await stage.create_pod()
        await stage.request_bind()
        status = await stage.phase("pod", "Failed", "Succeeded")
        events = await stage.event("pod", "BindingFailed")
    assert (await stage.pod())["spec"]["nodeName"] == "gpu-node-2"
    assert status["failure"]["reason"] == "BoundElsewhere"
    assert "Bound" not in events
    assert plugin.points("pod") == ["pre_bind", "rollback"], "no post_bind"
    assert not (await stage.request())["metadata"].get("finalizers")
