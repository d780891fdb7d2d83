"""What plugins declare, rendered: rights, the conditions of hooks, and the policies on the reconciler's account."""

from typing import Any

import pytest

from bowline.framework.config import parse_settings
from bowline.localcluster.errors import CommandError
from tests.chart.rendering import NAMESPACE, Chart, Rendered
from tests.chart.test_hooks import expressions
from tests.chart.test_rights import accounts, rights

SEATS = {
    "plugin": "seats",
    "hooks": ["pods", "ephemeralcontainers"],
    "rules": [
        {"resource": "configmaps", "verbs": ["get", "create"], "namespace": "seats", "namePrefix": "seat-"},
        {"resource": "networks", "group": "net.example.com", "verbs": ["get", "list"]},
        {"resource": "networks", "group": "net.example.com", "verbs": ["create"], "label": "seats.example/pod"},
    ],
    "reviewedAnnotations": ["seats.example/count"],
    "reviewedLabels": ["seats.example/team"],
    "reviewedFields": ["spec.tolerations"],
    "podAnnotations": ["seats.example/granted"],
}


@pytest.fixture(scope="module")
def with_seats(chart: Chart) -> Rendered:
    return chart.render({"pluginAccess": [SEATS]})


def test_the_processes_know_which_plugins_are_granted(chart: Chart, manifests: Rendered) -> None:
    """One that is enabled and not granted is an error at start; without plugins of others there is nothing to say."""
    enabled = {"config": {"plugins": [{"name": "seats"}, {"name": "forgotten"}]}}
    manifests_with_access = chart.render({**enabled, "pluginAccess": [SEATS]})
    assert parse_settings(manifests_with_access.config_text()).granted_plugins == ("seats",)
    assert parse_settings(chart.render(enabled).config_text()).granted_plugins == ()
    assert parse_settings(manifests.config_text()).granted_plugins is None


def test_a_plugins_rights_are_granted_where_they_end(with_seats: Rendered) -> None:
    cluster_wide = rights(with_seats.get("ClusterRole", "bowline-reconciler"))
    assert cluster_wide["net.example.com", "networks", ""] == {"create"}  # the last of its rules
    assert cluster_wide["", "configmaps", ""] == {"get", "create", "delete"}  # those of shares
    role = with_seats.get("Role", "bowline-reconciler-plugins")
    assert role["metadata"]["namespace"] == "seats"
    assert rights(role) == {("", "configmaps", ""): {"get", "create"}}
    binding = with_seats.get("RoleBinding", "bowline-reconciler-plugins")
    assert binding["metadata"]["namespace"] == "seats"
    assert binding["subjects"] == accounts([("bowline-reconciler", NAMESPACE)])


def test_without_shares_pods_are_still_limited_to_what_a_plugin_patches(chart: Chart) -> None:
    off = {"config": {"plugins": [{"name": "gpu_sharing", "enabled": False}]}}
    policy = ("ValidatingAdmissionPolicy", "bowline-reconciler-pods")
    assert policy not in chart.render(off).by_kind
    made = chart.render({**off, "pluginAccess": [SEATS]})
    texts = [validation["expression"] for validation in made.get(*policy)["spec"]["validations"]]
    assert any('annotationsChanged.all(k, k in ["seats.example/granted"])' in text for text in texts)
    assert "patch" in rights(made.get("ClusterRole", "bowline-reconciler"))["", "pods", ""]


@pytest.mark.parametrize(
    ("entry", "path"),
    [
        pytest.param({"bindingAnnotations": ["a'] || true"]}, "bindingAnnotations/0", id="an end of the expression"),
        pytest.param({"rules": [{"resource": "*", "verbs": ["get"]}]}, "rules/0/resource", id="every resource"),
        pytest.param({"rules": [{"resource": "pods", "verbs": ["*"]}]}, "rules/0/verbs/0", id="every verb"),
        pytest.param({"rules": [{"resource": "pods", "verbs": ["create"], "namePrefix": "a'"}]},
            "rules/0/namePrefix", id="a prefix that ends the expression"),
        pytest.param({"reviewedFields": ["status.phase"]}, "reviewedFields/0", id="a field outside of the spec"),
        pytest.param({"annotations": []}, "pluginAccess/0", id="an unknown key"),
    ],
)  # fmt: skip
def test_what_no_plugin_prints_is_rejected(chart: Chart, entry: dict[str, Any], path: str) -> None:
    with pytest.raises(CommandError) as caught:
        chart.render({"pluginAccess": [{"plugin": "seats", **entry}]})
    assert path.replace("/", "") in str(caught.value).replace("/", "").replace(".", "")


@pytest.mark.parametrize(
    ("values", "is_enabled"),
    [
        pytest.param({}, False, id="off"),
        pytest.param({"gpuSharing": {"nvFractions": "Auto"}}, True, id="on nodes that report it"),
        pytest.param({"gpuSharing": {"nvFractions": True}}, True, id="on"),
        pytest.param({"plugins": [{"name": "nv_fractions"}]}, True, id="by its entry"),
        pytest.param({"gpuSharing": {"nvFractions": True}, "plugins": [{"name": "nv_fractions", "enabled": False}]},
            False, id="off by its entry"),
    ],
)  # fmt: skip
def test_gpu_fractioning_is_reviewed_and_bound_if_it_is_enabled(
    chart: Chart, values: dict[str, Any], is_enabled: bool
) -> None:
    manifests = chart.render({"config": values})
    condition = expressions(manifests)["validating", "pods", "created-or-changed"]
    assert ("nvidia.com/container." in condition) is is_enabled
    policy = manifests.get("ValidatingAdmissionPolicy", "bowline-reconciler-bindings")
    allowed = str(policy["spec"]["validations"])
    assert (".gpu-memory.request" in allowed) is is_enabled


def test_plugin_checks_adds_its_kind_its_policy_and_a_role_for_each_check(chart: Chart, manifests: Rendered) -> None:
    """Nothing of it while it is off."""
    checks = [{"name": "network"}, {"name": "audit", "namespaces": ["*"]}]
    enabled = chart.render({"config": {"plugins": {"checks": {"enabled": True, "args": {"checks": checks}}}}})
    added = set(enabled.by_kind) - set(manifests.by_kind)
    assert {name for kind, name in added if kind != "ConfigMap"} == {
        "bindchecks.bowline.dev",
        "bowline-bindchecks",
        "bowline-check-network",
        "bowline-check-audit",
    }
    answers = {
        rule["resourceNames"][0]: rule["verbs"]
        for role in ("bowline-check-network", "bowline-check-audit")
        for rule in enabled.get("ClusterRole", role)["rules"]
        if "resourceNames" in rule
    }
    assert answers == {"network": ["answer"], "audit": ["answer"]}
    writes = rights(enabled.get("ClusterRole", "bowline-reconciler"))["bowline.dev", "bindchecks", ""]
    assert writes == {"get", "list", "watch", "create", "delete"}
