"""Warnings from the inventory of nodes, as kubectl shows them."""

import pytest

from shared.api import names
from shared.testing.builders import pod
from tests.live import Live


def created(live: Live, gpus: str, dry: bool = True) -> str:
    limits = {"limits": {names.RESOURCE_GPU: gpus}}
    wanted = pod(containers=[{"name": "main", "image": "registry.example/app:1", "resources": limits}])
    wanted["metadata"].pop("namespace")
    flags = ["--dry-run=server"] if dry else []
    return live.kubectl("create", *flags, "-f", "-", objects=wanted).stderr


@pytest.mark.parametrize(
    ("gpus", "warned"),
    [pytest.param("999", True, id="more than any node has"), pytest.param("8", False, id="as many")],
)
def test_more_gpus_than_any_node_has_are_warned_about(guarded: Live, gpus: str, warned: bool) -> None:
    # The webhook is ready before it has read the nodes.
    guarded.until("the webhook knows the nodes", lambda: "than any node" in created(guarded, "999") or None)
    assert ("than any node is labelled with" in created(guarded, gpus, dry=False)) is warned
    assert guarded.pod()["spec"]["containers"][0]["resources"]["limits"] == {names.RESOURCE_GPU: gpus}
