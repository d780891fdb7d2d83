"""When the policies are rendered, for which accounts and with which settings."""

import re
from typing import Any

import pytest

from bowline.api import names
from tests.chart.presets import PRESETS
from tests.chart.rendering import Chart, Rendered

POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
PODS = "bowline-pods"
GUARDS = {"bowline-devices", "bowline-share-configmaps", "bowline-namespaces"}
TOPOLOGIES = "bowline-topologies"
TEST = "bowline-test"
AGENT = names.RESERVATION_SERVICE_ACCOUNT
OF_SHARES = {"bowline-reconciler-pods", "bowline-reconciler-configmaps", "bowline-agent"}
OF_VOLUMES = {"bowline-reconciler-volumes", "bowline-reconciler-volume-claims"}
OF_BINDS = {"bowline-reconciler-bindings", "bowline-reconciler-pod-status"}
ACCOUNTS = OF_SHARES | OF_VOLUMES | OF_BINDS | {"bowline-reconciler-claims", "bowline-webhook-secret"}


@pytest.mark.parametrize("values", PRESETS)
def test_the_policy_is_in_force_where_the_gate_is(chart: Chart, values: dict[str, Any]) -> None:
    manifests = chart.render(values)
    policy, binding = manifests.get(POLICY, PODS), manifests.get(BINDING, PODS)
    gate = validating_pods_hook(manifests)
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert policy["spec"]["matchConstraints"]["namespaceSelector"] == gate["namespaceSelector"]
    shared = {c["name"]: c["expression"] for c in gate["matchConditions"]}
    own = {c["name"]: c["expression"] for c in policy["spec"]["matchConditions"]}
    for name in ("not-a-mirror-pod", "ours"):
        assert own[name] == shared[name]
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["resources"], rule["operations"]) == (["pods"], ["CREATE"]), "changes are left to the webhook"


SHARING_OFF = {"config": {"plugins": [{"name": "gpu_sharing", "enabled": False}]}}
SWITCHED = [
    pytest.param({}, {PODS} | GUARDS | ACCOUNTS, id="the chart's own values"),
    pytest.param({"policy": {"enabled": False}}, GUARDS | ACCOUNTS, id="no rules of annotations"),
    pytest.param({"config": {"plugins": [{"name": "gpu_request", "enabled": False}]}}, GUARDS | ACCOUNTS,
        id="no such plugin"),
    pytest.param({"policy": {"topologies": True}}, {PODS, TOPOLOGIES} | GUARDS | ACCOUNTS, id="beside KAI-Scheduler"),
    pytest.param({"policy": {"devices": False}}, {PODS} | ACCOUNTS, id="no guards of devices"),
    pytest.param({"policy": {"accounts": False}}, {PODS} | GUARDS, id="no limits of accounts"),
    pytest.param(SHARING_OFF, {PODS} | ACCOUNTS - OF_SHARES, id="without shares"),
    pytest.param({"config": {"plugins": [{"name": "volume_binding", "enabled": False}]}},
        {PODS} | GUARDS | ACCOUNTS - OF_VOLUMES, id="without volumes"),
    pytest.param({"config": {"plugins": [{"name": "dynamic_resources", "enabled": False}]}},
        {PODS} | GUARDS | ACCOUNTS - {"bowline-reconciler-claims"}, id="without resource claims"),
]  # fmt: skip


@pytest.mark.parametrize(("values", "expectation"), SWITCHED)
def test_each_policy_exists_where_its_accounts_have_rights(chart: Chart, values: Any, expectation: set[str]) -> None:
    assert policies(chart.render(values)) - {TEST} == expectation


def test_every_policy_has_one_binding_fails_closed_and_denies(manifests: Rendered) -> None:
    for name in policies(manifests):
        binding = manifests.get(BINDING, name)
        assert binding["spec"] == {"policyName": name, "validationActions": ["Deny"]}
        assert manifests.get(POLICY, name)["spec"]["failurePolicy"] == "Fail"
    assert len(manifests.of_kind(BINDING)) == len(policies(manifests))


def test_the_reconciler_recognizes_the_policies_that_may_deny_its_writes(chart: Chart) -> None:
    names_by_release = [policies(chart.render({"fullnameOverride": name})) for name in ("bowline", "gpu-team")]
    for names_of_release, release in zip(names_by_release, ("bowline", "gpu-team"), strict=True):
        roles = {name.removeprefix(f"{release}-") for name in names_of_release}
        assert roles - {"pods", "agent", "webhook-secret", "topologies", "test", "namespaces"} == set(names.POLICIES)


def test_the_entries_of_a_map_are_compared_only_up_to_a_limit(manifests: Rendered) -> None:
    """The owner of an object chooses how many it has; a loop over them costs the API server."""
    loops = re.compile(r"(?:metadata|variables)\.(?:labels|annotations)(?:Before)?\.(?:all|exists|filter|map)\(")
    for name in policies(manifests):
        spec = manifests.get(POLICY, name)["spec"]
        for variable in spec.get("variables", ()):
            if loops.search(variable["expression"]):
                assert re.match(
                    r"variables\.(\w+) == variables\.\1Before \? \[\]"
                    r" : size\(variables\.\1\) > \d{3} \|\| size\(variables\.\1Before\) > \d{3} \? \['\*'\]",
                    variable["expression"],
                ), (name, variable)
        assert not [v for v in spec["validations"] if loops.search(v["expression"])], name


def test_pods_are_deleted_only_in_the_namespace_of_reservations(manifests: Rendered) -> None:
    """Rights end there as well: no request of the reconciler shows this condition alone."""
    validations = manifests.get(POLICY, "bowline-reconciler-pods")["spec"]["validations"]
    (deletions,) = (v["expression"] for v in validations if "request.operation != 'DELETE'" in v["expression"])
    assert deletions.startswith("request.operation != 'DELETE' || (request.namespace == 'kai-resource-reservation'")


def policies(manifests: Rendered) -> set[str]:
    return {policy["metadata"]["name"] for policy in manifests.of_kind(POLICY)}


def validating_pods_hook(manifests: Rendered) -> Any:
    (pods_hook,) = [
        hook for word, hook in manifests.hooks() if (word, hook["name"]) == ("validating", "pods.bowline.dev")
    ]
    return pods_hook
