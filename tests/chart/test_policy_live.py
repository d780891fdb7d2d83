"""The chart's policy on a real API server, without the webhook: the same verdicts and messages as the Python rules.

All requests are dry runs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from bowline.api import names
from bowline.api.field_error import format_value
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.plugins.gpu_request.rule_table import FRACTION_RANGE, LONGEST_FRACTION, RULES
from bowline.plugins.gpu_request.rules import Policy, request_errors
from tests.chart.objects import IMAGE, PODS, pod
from tests.chart.policies import until_none_in_force
from tests.chart.policy_pods import GPU, random_pods
from tests.chart.rendering import Chart
from tests.waiting import wait_until

DRY = "?dryRun=All"
DENIED = "denied request: "
COUNT = 300
API = "/apis/admissionregistration.k8s.io/v1/"
KINDS = ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
BAD = {names.GPU_FRACTION: "50%"}

KNOWN = ["gpu.example.com", "other.example.com"]
SETTINGS = {
    "the chart's own settings": ({}, Policy()),
    "sharing off, device classes known to be GPUs": ({"gpuSharing": {"enabled": False}, "gpuDeviceClasses": KNOWN},
        Policy(sharing=False, gpu_device_classes=frozenset(KNOWN))),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Armed:
    """A cluster where the policy is in force, and the settings it was rendered with."""

    cluster: Cluster
    settings: Policy

    def refusal(self, body: Any) -> str | None:
        """Return the policy's denial of a new pod; None if it is allowed."""
        return refusal(self.cluster, body)


def refusal(cluster: Cluster, body: Any) -> str | None:
    try:
        cluster.api.post(PODS + DRY, body)
    except LocalApiError as error:
        before, separator, text = str(error).partition(DENIED)
        if not separator or "ValidatingAdmissionPolicy" not in before:
            raise AssertionError(f"refused by something else than the policy: {body}") from error
        return f"{error.status}: {text}"
    return None


@pytest.fixture(scope="module", params=SETTINGS)
def cluster_with_policy(request: pytest.FixtureRequest, chart_cluster: Cluster, chart: Chart) -> Iterator[Armed]:
    """Only the policy, in force."""
    config, settings = SETTINGS[request.param]
    with_policy = chart.render({"config": config})
    objects = [with_policy.get(f"ValidatingAdmissionPolicy{suffix}", "bowline-pods") for suffix in ("", "Binding")]
    until_none_in_force(chart_cluster)
    for kind, obj in zip(KINDS, objects, strict=True):
        chart_cluster.api.post(f"{API}{kind}?fieldValidation=Strict", obj)
    until_refused(chart_cluster, True)
    yield Armed(chart_cluster, settings)
    for kind, obj in zip(KINDS, objects, strict=True):
        chart_cluster.api.delete(f"{API}{kind}/{obj['metadata']['name']}")
    until_refused(chart_cluster, False)


def until_refused(cluster: Cluster, wanted: bool) -> None:
    """Wait until the API server's watch has delivered the policy, or its deletion."""
    probe = pod("probe", "kai-scheduler", BAD)
    wait_until(lambda: (refusal(cluster, probe) is not None) == wanted, "the change of the policy")


def expected(body: Any, settings: Policy) -> str | None:
    """Return the expected denial, from the errors of the Python rules."""
    fraction = body["metadata"].get("annotations", {}).get(names.GPU_FRACTION, "")
    unchecked = FRACTION_RANGE if len(fraction) > LONGEST_FRACTION else None
    faults = [
        fault for fault in request_errors(body, settings) if not fault.is_warning and fault.rule is not unchecked
    ]
    messages = [f"{fault.path}: {format_value(fault.value)}: {fault.rule.message} ({fault.rule})" for fault in faults]
    if len(messages) > 1:
        return f"422: {len(messages)} errors: {'; '.join(messages)}"
    return f"422: {messages[0]}" if messages else None


def test_the_policy_and_the_python_rules_deny_the_same_pods_with_the_same_message(cluster_with_policy: Armed) -> None:
    denials = 0
    for body in random_pods(seed=20, count=COUNT):
        message = expected(body, cluster_with_policy.settings)
        assert cluster_with_policy.refusal(body) == message, body
        denials += message is not None
    assert COUNT * 0.2 < denials < COUNT * 0.98, "the pods are too similar for a meaningful result"


def many_containers() -> Any:
    body = pod("many", "kai-scheduler", {names.GPU_FRACTION: "0.5"})
    limits = {GPU: 1, "cpu": "1m", "memory": "1Mi"}
    body["spec"]["containers"] = [{**IMAGE, "name": f"c-{i}", "resources": {"limits": limits}} for i in range(300)]
    return body


SNAILS = "\U0001f40c" * 64
QUOTES = '"' * 80
EXTREMES = [
    pytest.param(pod("a", "kai-scheduler", dict.fromkeys((names.GPU_FRACTION, names.GPU_MEMORY,
        names.GPU_FRACTION_NUM_DEVICES), SNAILS) | {names.GPU_FRACTION_CONTAINER: SNAILS}),
        id="the longest message"),
    pytest.param(pod("a", "kai-scheduler", {names.GPU_MEMORY: QUOTES, names.GPU_FRACTION: QUOTES}), id="only quotes"),
    pytest.param(pod("a", "kai-scheduler", {names.GPU_MEMORY: "9" * 260_000}), id="the largest annotation, digits"),
    pytest.param(pod("a", "kai-scheduler", {names.GPU_FRACTION: "1" * 260_000}),
        id="the largest annotation, a fraction"),
    pytest.param(pod("a", "kai-scheduler", {names.GPU_FRACTION: "\\" * 260_000}),
        id="the largest annotation, nonsense"),
    pytest.param(many_containers(), id="hundreds of containers"),
]  # fmt: skip


@pytest.mark.parametrize("body", EXTREMES)
def test_extreme_values_stay_within_the_limits_of_cost_and_message(cluster_with_policy: Armed, body: Any) -> None:
    assert cluster_with_policy.refusal(body) == expected(body, cluster_with_policy.settings)


def test_every_rule_of_the_policy_denies_some_generated_pod() -> None:
    pods = random_pods(seed=20, count=COUNT)
    rule_ids = {
        fault.rule.id
        for _, settings in SETTINGS.values()
        for body in pods
        for fault in request_errors(body, settings)
        if not fault.is_warning
    }
    assert rule_ids == {rule.id for rule in RULES if rule.cel is not None}


@pytest.mark.parametrize(
    "containers",
    [
        pytest.param([{}] * 513, id="containers"),
        pytest.param([{"limits": {f"example.com/r{number}": "1" for number in range(17)}}], id="limits and requests"),
    ],
)
def test_a_pod_with_more_than_the_rules_read_is_denied(cluster_with_policy: Armed, containers: Any) -> None:
    body = pod("large", "kai-scheduler", {names.GPU_FRACTION: "0.5"})
    body["spec"]["containers"] = [
        {"name": f"c{number}", "image": "registry.example/app:1", "resources": resources}
        for number, resources in enumerate(containers)
    ]
    assert "at most 512 containers with 16 resources each" in (cluster_with_policy.refusal(body) or "")


def test_a_pod_with_as_much_as_the_rules_read_is_within_the_api_servers_budget(cluster_with_policy: Armed) -> None:
    body = pod("large", "kai-scheduler", {names.GPU_FRACTION: "0.5"})
    amounts = {f"example.com/a-resource-with-a-long-name-{number:02}": "1" for number in range(16)}
    containers = [{"name": f"c{number}", "image": "registry.example/app:1"} for number in range(512)]
    body["spec"]["containers"] = [each | {"resources": {"limits": amounts}} for each in containers]
    refusal = cluster_with_policy.refusal(body) or ""
    assert refusal == "" if cluster_with_policy.settings.sharing else "GPU sharing is switched off" in refusal
    body["spec"]["containers"][511]["resources"] = {"limits": {names.RESOURCE_GPU: "1"}}
    assert "a share cannot be combined with whole GPUs" in (cluster_with_policy.refusal(body) or "")
