"""A Binding that the API server rejects with 422 ends the request at once, with its message, and nothing is left.

A policy without a reason of its own rejects with that code, on every version. Kubernetes 1.37 also validates the
node's name, but answers 500 then; no Node has such a name, so no Binding is sent.
"""

from typing import Any

from bowline.framework.reason import Reason, Suggestion
from bowline.kube.errors import ApiError
from bowline.kube.resources import PODS, Resource
from tests.reconciler.stage import Scripted, Stage
from tests.waiting import until_awaited

POLICIES = Resource("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies", "", namespaced=False)
POLICY_BINDINGS = Resource(
    "admissionregistration.k8s.io", "v1", "validatingadmissionpolicybindings", "", namespaced=False
)


async def reject_bindings(stage: Stage) -> None:
    """Let the API server answer 422 to every Binding in the namespace."""
    name = f"invalid-{stage.namespace}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/binding"]}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "false", "message": "the node is not valid for this pod"}],
    }
    await stage.client.create(POLICIES, "", {"metadata": {"name": name}, "spec": spec})
    selector = {"matchLabels": {"kubernetes.io/metadata.name": stage.namespace}}
    binding = {
        "policyName": name,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": selector},
    }
    await stage.client.create(POLICY_BINDINGS, "", {"metadata": {"name": name}, "spec": binding})


async def test_a_binding_that_is_invalid_fails_once_and_leaves_nothing(stage: Stage) -> None:
    await reject_bindings(stage)
    plugin = Scripted(effects=True)

    async def is_enforced() -> bool:
        """Whether a dry run is rejected already; policies take effect some seconds after their creation."""
        body: dict[str, Any] = {"metadata": {"name": "probe"}, "target": {"kind": "Node", "name": "gpu-node-0"}}
        return await post_binding_code(stage, body) == 422

    await stage.create_pod("probe")
    await until_awaited(is_enforced, bool)
    async with stage.working(plugin):
        await stage.create_pod()
        await stage.request_bind()
        status = await stage.phase("pod", "Failed")
    assert status["failure"]["reason"] == Reason.REJECTED.value
    assert status["suggestion"] == Suggestion.RESCHEDULE_ELSEWHERE.value
    assert plugin.points("pod") == ["pre_bind", "rollback"]
    assert not (await stage.request())["metadata"].get("finalizers")
    assert "nodeName" not in (await stage.pod())["spec"]


async def post_binding_code(stage: Stage, body: dict[str, Any]) -> int:
    """Post a Binding as a dry run; returns the code of the reply."""
    try:
        await stage.client.create(
            PODS, stage.namespace, body, name="probe", subresource="binding", params={"dryRun": "All"}
        )
    except ApiError as error:
        return error.code
    return 201
