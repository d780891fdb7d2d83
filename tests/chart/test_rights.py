"""Rights: exactly those that the two processes use, as a table. A new right is a new row here."""

import re
from typing import Any

import pytest

from tests.chart.presets import PRESETS
from tests.chart.rendering import NAMESPACE, Chart, Rendered

ADMISSION = "admissionregistration.k8s.io"
RESERVATIONS = "kai-resource-reservation"
AGENT = "bowline-gpu-agent"
# role: {(group, resource, object name or ""): verbs}
TABLE: dict[tuple[str, str], dict[tuple[str, str, str], set[str]]] = {
    ("ClusterRole", "bowline-webhook"): {
        (ADMISSION, "mutatingwebhookconfigurations", "bowline-webhook"): {"get", "list", "watch", "patch"},
        (ADMISSION, "validatingwebhookconfigurations", "bowline-webhook"): {"get", "list", "watch", "patch"},
        ("scheduling.run.ai", "bindrequests", ""): {"list", "watch"},
        ("node.k8s.io", "runtimeclasses", ""): {"list", "watch"},
        ("nvidia.com", "clusterpolicies", ""): {"list", "watch"},
    },
    ("Role", "bowline-webhook"): {("", "secrets", "bowline-ca"): {"get", "list", "watch", "update"}},
    ("ClusterRole", "bowline-reconciler"): {
        ("scheduling.run.ai", "bindrequests", ""): {"get", "list", "watch", "patch", "delete"},
        ("scheduling.run.ai", "bindrequests/status", ""): {"patch"},
        ("", "pods", ""): {"get", "list", "watch", "patch"},
        ("", "configmaps", ""): {"get", "create", "delete"},
        ("nvidia.com", "clusterpolicies", ""): {"list", "watch"},
        ("", "pods/binding", ""): {"create"},
        ("", "pods/status", ""): {"patch"},
        ("", "nodes", ""): {"get", "list", "watch"},
        ("events.k8s.io", "events", ""): {"create", "patch"},
        ("", "persistentvolumes", ""): {"get", "list", "watch", "patch"},
        ("", "persistentvolumeclaims", ""): {"get", "list", "watch", "patch"},
        ("storage.k8s.io", "storageclasses", ""): {"get", "list", "watch"},
        ("resource.k8s.io", "resourceclaims", ""): {"get", "list", "watch", "create", "patch", "delete"},
        ("resource.k8s.io", "resourceclaims/status", ""): {"update"},
        ("resource.k8s.io", "resourceclaims/binding", ""): {"update"},
        ("scheduling.k8s.io", "podgroups", ""): {"get"},
        ("resource.k8s.io", "resourceslices", ""): {"list", "watch"},
        ("resource.k8s.io", "devicetaintrules", ""): {"get", "list", "watch"},
    },
    ("Role", "bowline-reconciler"): {
        ("coordination.k8s.io", "leases", ""): {"create"},
        ("coordination.k8s.io", "leases", "bowline-reconciler"): {"get", "list", "watch", "update", "delete"},
    },
    # While Helm uninstalls the release.
    ("Role", "bowline-uninstall"): {("apps", "deployments/scale", "bowline-reconciler"): {"patch"}},
    # While `helm test` runs; its policy limits the creations to dry runs.
    ("Role", "bowline-test"): {
        ("apps", "deployments", ""): {"list"},
        ("coordination.k8s.io", "leases", ""): {"list"},
        ("", "configmaps", "bowline-config"): {"get"},
    },
    ("ClusterRole", "bowline-test"): {
        ("scheduling.run.ai", "bindrequests", ""): {"list", "create"},
        ("", "events", ""): {"list"},
        ("apiextensions.k8s.io", "customresourcedefinitions", "bindrequests.scheduling.run.ai"): {"get"},
        ("", "serviceaccounts", AGENT): {"get"},
        ("node.k8s.io", "runtimeclasses", ""): {"list"},
        ("nvidia.com", "clusterpolicies", ""): {"list"},
        ("", "namespaces", ""): {"list"},
        ("", "pods", ""): {"create"},
        (ADMISSION, "mutatingwebhookconfigurations", "bowline-webhook"): {"get"},
        (ADMISSION, "validatingwebhookconfigurations", "bowline-webhook"): {"get"},
        (ADMISSION, "validatingadmissionpolicies", ""): {"list"},
        (ADMISSION, "validatingadmissionpolicybindings", ""): {"list"},
    },
    # In the namespace of reservation pods: the reconciler's right to create them, and their own.
    ("Role", "bowline-shares"): {("", "pods", ""): {"create", "delete"}},
    ("Role", "bowline-agent"): {("", "pods", ""): {"get", "patch"}},
    # Of all users: what explains their pods.
    ("Role", "bowline-info"): {
        ("", "configmaps", "bowline-info"): {"get"},
        ("coordination.k8s.io", "leases", ""): {"get", "list"},
    },
    ("ClusterRole", "bowline-view"): {("scheduling.run.ai", "bindrequests", ""): {"get", "list", "watch"}},
    # Bound to no account: for a scheduler's.
    ("ClusterRole", "bowline-scheduler"): {
        ("scheduling.run.ai", "bindrequests", ""): {"get", "list", "watch", "create", "delete"}
    },
}


WITHOUT_SHARES = [{"name": "gpu_sharing", "enabled": False}]
NO_REPEATS: dict[str, Any] = {"config": {"admission": {"repeatBackoff": "0s"}}}

USERS = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:authenticated"}
# Also that of the agents of KAI-Scheduler and of earlier versions.
AGENTS = [(AGENT, RESERVATIONS), (RESERVATIONS, RESERVATIONS)]


def accounts(keys: list[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"kind": "ServiceAccount", "name": name, "namespace": namespace} for name, namespace in keys]


def rights(role: Any) -> dict[tuple[str, str, str], set[str]]:
    return {
        (group, resource, re.sub("-config-[0-9a-f]+$", "-config", name)): set(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
    }


def test_roles_hold_the_rights_of_the_table_and_no_others(manifests: Rendered) -> None:
    rights_by_role = {(o["kind"], o["metadata"]["name"]): rights(o) for o in manifests.of_kind("Role", "ClusterRole")}
    assert rights_by_role == TABLE


def test_each_account_is_bound_to_its_own_role_only(manifests: Rendered) -> None:
    elsewhere = {
        "bowline-shares": [("bowline-reconciler", NAMESPACE)],
        "bowline-uninstall": [("bowline-reconciler", NAMESPACE)],
        "bowline-agent": AGENTS,
    }
    for binding in manifests.of_kind("RoleBinding", "ClusterRoleBinding"):
        name = binding["metadata"]["name"]
        assert binding["roleRef"]["kind"] == binding["kind"].removesuffix("Binding")
        assert binding["roleRef"]["name"] == name
        if name == "bowline-info":
            assert binding["kind"] == "RoleBinding"
            assert binding["subjects"] == [USERS]
            continue
        assert binding["subjects"] == accounts(elsewhere.get(name, [(name, NAMESPACE)]))


def test_rights_on_reservation_pods_end_at_their_namespace(manifests: Rendered) -> None:
    for name in ("bowline-shares", "bowline-agent"):
        assert manifests.get("Role", name)["metadata"]["namespace"] == RESERVATIONS
        assert manifests.get("RoleBinding", name)["metadata"]["namespace"] == RESERVATIONS


def test_pod_groups_of_kai_scheduler_may_be_read_only_with_the_gate(chart: Chart) -> None:
    key = ("scheduling.run.ai", "podgroups", "")
    gated = chart.render({"config": {"featureGates": {"GangBinding": True}}})
    assert rights(gated.get("ClusterRole", "bowline-reconciler"))[key] == {"get"}
    assert key not in TABLE["ClusterRole", "bowline-reconciler"]


def test_without_new_shares_what_holds_devices_and_guards_them_stays(chart: Chart, manifests: Rendered) -> None:
    """Shares that run keep their devices, and their end releases these."""
    of_shares = {"bowline-shares", "bowline-agent", "bowline-devices", "bowline-share-configmaps", RESERVATIONS}
    off = chart.render({"config": {"gpuSharing": {"enabled": False}}})
    kept = {key: manifest for key, manifest in manifests.by_kind.items() if key[1] in of_shares}
    kept["ClusterRole", "bowline-reconciler"] = manifests.get("ClusterRole", "bowline-reconciler")
    assert of_shares <= {name for _, name in kept}
    assert {key: off.by_kind.get(key) for key in kept} == kept


def test_without_the_plugin_of_shares_there_are_no_rights_for_them(chart: Chart) -> None:
    manifests = chart.render({"config": {"plugins": WITHOUT_SHARES}})
    assert not [name for _, name in manifests.by_kind if name in ("bowline-shares", "bowline-agent", RESERVATIONS)]
    held = rights(manifests.get("ClusterRole", "bowline-reconciler"))
    assert held["", "pods", ""] == {"get", "list", "watch"}
    assert ("", "configmaps", "") not in held
    assert ("nvidia.com", "clusterpolicies", "") not in held


def test_objects_that_outlive_the_release_are_kept_and_the_namespace_may_be_another_charts(
    chart: Chart, manifests: Rendered
) -> None:
    for kind, name in (("Namespace", RESERVATIONS), ("ServiceAccount", AGENT)):
        assert manifests.get(kind, name)["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert ("Namespace", RESERVATIONS) not in chart.render({"reservation": {"createNamespace": False}}).by_kind


@pytest.mark.parametrize("values", PRESETS)
def test_no_right_is_a_wildcard_and_none_on_secrets_is_without_a_name(chart: Chart, values: dict[str, Any]) -> None:
    for role in chart.render(values).of_kind("Role", "ClusterRole"):
        for group, resource, name in rights(role):
            assert "*" not in (group, resource, name)
            assert resource != "secrets" or name in ("bowline-ca", "bowline-webhook-ca")
            assert resource != "secrets" or role["kind"] == "Role"
        assert all("*" not in verbs for verbs in rights(role).values())


@pytest.mark.parametrize(
    "tls",
    [
        pytest.param({"mode": "secret", "secretName": "x"}, id="one's own"),
        pytest.param({"mode": "cert-manager"}, id="cert-manager publishes it"),
    ],
)
def test_with_a_given_certificate_there_is_no_right_on_secrets_or_configurations(
    chart: Chart, tls: dict[str, str]
) -> None:
    manifests = chart.render({"webhook": {"tls": tls}})
    assert ("Role", "bowline-webhook") not in manifests.by_kind
    role_rights = rights(manifests.get("ClusterRole", "bowline-webhook"))
    assert ADMISSION not in {group for group, *_ in role_rights}


@pytest.mark.parametrize(
    ("plugin", "prefixes"),
    [
        pytest.param("dynamic_resources", ("resource.k8s.io/",), id="no rights on claims of devices"),
        pytest.param("volume_binding", ("/persistentvolume", "storage.k8s.io/"), id="no rights on volumes"),
    ],
)
def test_a_disabled_plugin_gets_no_rights(chart: Chart, plugin: str, prefixes: tuple[str, ...]) -> None:
    def held(values: dict[str, Any]) -> list[str]:
        role_rights = rights(chart.render(values).get("ClusterRole", "bowline-reconciler"))
        return [
            f"{group}/{resource}" for group, resource, _ in role_rights if f"{group}/{resource}".startswith(prefixes)
        ]

    assert held({})
    assert not held({"config": {"plugins": [{"name": plugin, "enabled": False}]}})


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({"policy": {"accounts": False}}, id="no policy limits accounts"),
        pytest.param({"admission": {"mode": "Off"}}, id="no policy at all"),
    ],
)
def test_without_its_policy_the_account_of_the_test_may_create_nothing(chart: Chart, values: Any) -> None:
    manifests = chart.render(values)
    assert ("ValidatingAdmissionPolicy", "bowline-test") not in manifests.by_kind
    verbs = [rights(manifests.get(kind, "bowline-test")).values() for kind in ("Role", "ClusterRole")]
    assert set().union(*(verb for role_verbs in verbs for verb in role_verbs)) == {"get", "list"}


@pytest.mark.parametrize(
    ("values", "read"),
    [
        pytest.param(NO_REPEATS, {key: {"list", "watch"} for key in ("runtimeclasses", "clusterpolicies")},
            id="the runtimes of shares"),
        pytest.param({"config": {"admission": {"repeatBackoff": "0s"}, "plugins": WITHOUT_SHARES}}, {},
            id="without shares nothing"),
        pytest.param({"config": {"plugins": WITHOUT_SHARES}}, {"bindrequests": {"list", "watch"}},
            id="which decisions have failed"),
    ],
)  # fmt: skip
def test_the_webhook_may_read(chart: Chart, values: Any, read: Any) -> None:
    role_rights = rights(chart.render(values).get("ClusterRole", "bowline-webhook"))
    other_rights = {resource: verbs for (group, resource, _), verbs in role_rights.items() if group != ADMISSION}
    assert other_rights == read


def test_the_label_of_reservation_pods_is_a_setting(chart: Chart) -> None:
    args = {"reservationAppLabel": "reserved"}
    manifests = chart.render({"config": {"plugins": [{"name": "gpu_sharing", "args": args}]}})
    policy = str(manifests.get("ValidatingAdmissionPolicy", "bowline-reconciler-pods"))
    assert "'reserved'" in policy
    assert "['app'] == 'kai-resource-reservation'" not in policy
