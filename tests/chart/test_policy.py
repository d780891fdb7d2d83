"""When the policy is rendered, for whom and with which settings."""

from typing import Any

import pytest

from tests.chart.presets import EVERYTHING, PRESETS
from tests.chart.rendering import Chart, Rendered

POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"policy": {"enabled": False}}, id="switched off"),
        pytest.param({"config": {"plugins": [{"name": "gpu_request", "enabled": False}]}}, id="without its plugin"),
    ],
)
def test_no_policy(chart: Chart, values: dict[str, Any]) -> None:
    assert not chart.render(values).of_kind(POLICY, BINDING)


@pytest.mark.parametrize("values", PRESETS)
def test_the_policy_is_in_force_where_the_gate_is(chart: Chart, values: dict[str, Any]) -> None:
    rendered = chart.render(values)
    policy, binding = rendered.of_kind(POLICY)[0], rendered.of_kind(BINDING)[0]
    gate = validating_pods_hook(rendered)
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert policy["spec"]["matchConstraints"]["namespaceSelector"] == gate["namespaceSelector"]
    shared = {c["name"]: c["expression"] for c in gate["matchConditions"]}
    own = {c["name"]: c["expression"] for c in policy["spec"]["matchConditions"]}
    for name in ("not-a-mirror-pod", "ours"):
        assert own[name] == shared[name]


def test_a_star_serves_every_scheduler(chart: Chart) -> None:
    (policy,) = chart.render(EVERYTHING).of_kind(POLICY)
    assert {"name": "ours", "expression": "true"} in policy["spec"]["matchConditions"]


@pytest.mark.parametrize(
    ("config", "sharing", "classes"),
    [
        pytest.param({}, "true", "[]", id="the chart's own settings"),
        pytest.param({"gpuSharing": {"enabled": False}}, "false", "[]", id="sharing off"),
        pytest.param({"gpuDeviceClasses": ["a.b", 'c"d']}, "true", '["a.b","c\\"d"]', id="device classes, quoted"),
    ],
)
def test_settings_reach_the_policy_as_variables(chart: Chart, config: Any, sharing: str, classes: str) -> None:
    (policy,) = chart.render({"config": config}).of_kind(POLICY)
    variables = {v["name"]: v["expression"] for v in policy["spec"]["variables"]}
    assert (variables["sharing"], variables["gpuDeviceClasses"]) == (sharing, classes)


def validating_pods_hook(rendered: Rendered) -> Any:
    (found,) = [hook for word, hook in rendered.hooks() if (word, hook["name"]) == ("validating", "pods.bowline.dev")]
    return found
