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


# --- the remaining values ---


def test_the_namespace_of_reservations_admits_restricted_pods_only(manifests: Rendered) -> None:
    labels = manifests.get("Namespace", "kai-resource-reservation")["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_secret_of_the_ca_is_rendered_without_data(manifests: Rendered) -> None:
    secret = manifests.get("Secret", "bowline-ca")
    assert secret["type"] == "Opaque"
    assert not {"data", "stringData", "immutable"} & set(secret)
    assert secret["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
