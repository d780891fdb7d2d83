"""Rights: exactly those the two processes use, as a table. A new right is a new row here."""

from typing import Any

import pytest

from tests.chart.presets import PRESETS
from tests.chart.rendering import NAMESPACE, Chart, Rendered

# role: {(group, resource, object name or ""): verbs}
TABLE: dict[tuple[str, str], dict[tuple[str, str, str], set[str]]] = {
    ("ClusterRole", "bowline-webhook"): {
        ("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "bowline-webhook"): {"get", "patch"},
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations", "bowline-webhook"): {"get", "patch"},
    },
    ("ClusterRole", "bowline-reconciler"): {
        ("scheduling.run.ai", "bindrequests", ""): {"get", "list", "watch", "patch", "delete"},
        ("scheduling.run.ai", "bindrequests/status", ""): {"patch"},
        ("", "pods", ""): {"get", "list", "watch"},
        ("", "pods/binding", ""): {"create"},
        ("", "pods/status", ""): {"patch"},
        ("", "nodes", ""): {"get", "list", "watch"},
        ("events.k8s.io", "events", ""): {"create", "patch"},
    },
    ("Role", "bowline-reconciler"): {
        ("coordination.k8s.io", "leases", ""): {"create"},
        ("coordination.k8s.io", "leases", "bowline-reconciler"): {"get", "list", "watch", "update"},
    },
    ("ClusterRole", "bowline-view"): {
        ("scheduling.run.ai", "bindrequests", ""): {"get", "list", "watch"},
    },
}


def rights(role: Any) -> dict[tuple[str, str, str], set[str]]:
    return {
        (group, resource, name): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }


def test_roles_hold_the_rights_of_the_table_and_no_others(rendered: Rendered) -> None:
    found = {(o["kind"], o["metadata"]["name"]): rights(o) for o in rendered.of_kind("Role", "ClusterRole")}
    assert found == TABLE


def test_each_account_is_bound_to_its_own_role_only(rendered: Rendered) -> None:
    for binding in rendered.of_kind("RoleBinding", "ClusterRoleBinding"):
        name = binding["metadata"]["name"]
        assert binding["roleRef"]["kind"] == binding["kind"].removesuffix("Binding")
        assert binding["roleRef"]["name"] == name
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}]


@pytest.mark.parametrize("values", PRESETS)
def test_no_right_is_a_wildcard_and_none_is_on_secrets(chart: Chart, values: dict[str, Any]) -> None:
    for role in chart.render(values).of_kind("Role", "ClusterRole"):
        for group, resource, name in rights(role):
            assert "*" not in (group, resource, name)
            assert resource != "secrets"
        assert all("*" not in verbs for verbs in rights(role).values())


def test_viewers_see_bindrequests_and_nobody_is_given_the_right_to_make_one(rendered: Rendered) -> None:
    role = rendered.get("ClusterRole", "bowline-view")
    assert role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert not [
        label
        for obj in rendered.of_kind("ClusterRole")
        for label in obj["metadata"]["labels"]
        if label.endswith(("aggregate-to-edit", "aggregate-to-admin"))
    ]
