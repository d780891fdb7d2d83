"""Several aliases in one release, and what a release's values add to it."""

from typing import Any

from tests.chart.rendering import Chart, Rendered


def selectors(manifests: Rendered) -> list[dict[str, str]]:
    match_labels: list[dict[str, str]] = [
        o["spec"]["selector"]["matchLabels"] for o in manifests.of_kind("Deployment")
    ]
    match_labels += [o["spec"]["selector"] for o in manifests.of_kind("Service")]
    return match_labels + [o["spec"]["selector"]["matchLabels"] for o in manifests.of_kind("PodDisruptionBudget")]


def test_two_charts_of_one_release_select_no_pods_of_each_other(chart: Chart) -> None:
    """As aliases of a parent chart: one release, distinguished by their names."""
    alias, other_alias = (chart.render({"fullnameOverride": name}, release="platform") for name in ("one", "other"))
    for here, there in ((alias, other_alias), (other_alias, alias)):
        pods: list[Any] = [o["spec"]["template"]["metadata"]["labels"] for o in there.of_kind("Deployment")]
        assert not [s for s in selectors(here) for labels in pods if s.items() <= labels.items()]


def test_selectors_of_a_release_without_an_override_do_not_change(manifests: Rendered) -> None:
    """A Deployment's selector cannot be changed: with another one no upgrade would be possible."""
    for selector in selectors(manifests):
        component = selector["app.kubernetes.io/component"]
        assert selector == {
            "app.kubernetes.io/name": "bowline",
            "app.kubernetes.io/instance": "bowline",
            "app.kubernetes.io/component": component,
        }


def test_a_name_that_is_the_releases_own_changes_no_selector(chart: Chart) -> None:
    """A release with dots in its name has objects with dashes; to give that name must not prevent an upgrade."""
    without, override = (chart.render(values, release="my.rel") for values in ({}, {"fullnameOverride": "my-rel"}))
    assert selectors(override) == selectors(without)


# --- allowed connections ---

PEERS = [{"ipBlock": {"cidr": "10.0.0.0/28"}}]
MONITORING = [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}]


def ingress(manifests: Rendered, name: str) -> list[tuple[str, Any]]:
    policy = manifests.get("NetworkPolicy", f"bowline-{name}")["spec"]
    deployment = manifests.get("Deployment", f"bowline-{name}")["spec"]
    assert policy["podSelector"] == deployment["selector"]
    assert policy["policyTypes"] == ["Ingress"]
    return [(rule["ports"][0]["port"], rule.get("from")) for rule in policy.get("ingress") or ()]


def test_no_network_policy_by_default(manifests: Rendered) -> None:
    assert not manifests.of_kind("NetworkPolicy")


def test_a_network_policy_admits_only_the_given_peers(chart: Chart) -> None:
    policy_values = {"enabled": True, "apiServers": PEERS, "monitoring": MONITORING}
    manifests = chart.render({"networkPolicy": policy_values})
    assert ingress(manifests, "webhook") == [("https", PEERS), ("metrics", MONITORING)]
    assert ingress(manifests, "reconciler") == [("metrics", MONITORING)]


def test_a_network_policy_without_peers_leaves_only_the_webhook_open(chart: Chart) -> None:
    manifests = chart.render({"networkPolicy": {"enabled": True}})
    assert ingress(manifests, "webhook") == [("https", None)]
    assert ingress(manifests, "reconciler") == []


# --- the remaining values ---


def test_the_role_for_schedulers_is_opt_in_and_has_no_binding(chart: Chart, manifests: Rendered) -> None:
    assert ("ClusterRole", "bowline-scheduler") not in manifests.by_kind
    manifests_with_role = chart.render({"schedulerRole": {"create": True}})
    (rule,) = manifests_with_role.get("ClusterRole", "bowline-scheduler")["rules"]
    assert rule == {
        "apiGroups": ["scheduling.run.ai"],
        "resources": ["bindrequests"],
        "verbs": ["get", "list", "watch", "create", "delete"],
    }
    assert not [
        b for b in manifests_with_role.of_kind("ClusterRoleBinding") if b["roleRef"]["name"] == "bowline-scheduler"
    ]


def test_the_namespace_of_reservations_admits_restricted_pods_only(manifests: Rendered) -> None:
    labels = manifests.get("Namespace", "kai-resource-reservation")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_secret_of_the_ca_is_rendered_without_data(manifests: Rendered) -> None:
    secret = manifests.get("Secret", "bowline-ca")
    assert secret["type"] == "Opaque"
    assert not {"data", "stringData", "immutable"} & set(secret)
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
