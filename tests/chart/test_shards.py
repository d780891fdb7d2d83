"""A shard: its flag, and rights on the Lease that the reconciler derives from it."""

from typing import Any

from bowline_reconciler.options import parse_options
from tests.chart.rendering import Chart, Rendered


def lease_and_shard(manifests: Rendered) -> tuple[str, str]:
    """The options that the reconciler parses from the rendered command line."""
    pod: Any = manifests.get("Deployment", "bowline-reconciler")["spec"]["template"]["spec"]
    known = ("--lease-name", "--shard-label-selector")
    arguments = [text for text in pod["containers"][0]["args"] if text.partition("=")[0] in known]
    options = parse_options(arguments, {})
    return options.lease_name, options.shard


def leases_of(manifests: Rendered) -> list[str]:
    """The Leases that the reconciler may renew."""
    rules = manifests.get("Role", "bowline-reconciler")["rules"]
    return [name for rule in rules for name in rule.get("resourceNames", ())]


def test_a_shard_may_renew_its_lease_whatever_its_name(chart: Chart) -> None:
    whole = chart.render()
    assert lease_and_shard(whole) == ("bowline-reconciler", "")
    assert leases_of(whole) == ["bowline-reconciler"]
    selector = "tier=x, example.com/pool in (b, a)"
    shard = chart.render({"reconciler": {"shardLabelSelector": selector}})
    lease, seen = lease_and_shard(shard)
    assert seen == "example.com/pool in (a,b),tier=x"
    assert leases_of(shard) == [], "the name is a hash of the selector's one form, which the chart cannot build"
    assert lease != "bowline-reconciler"
