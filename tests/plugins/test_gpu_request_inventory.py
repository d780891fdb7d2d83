"""Warnings from the inventory of nodes, as kubectl shows them."""

import pytest

from bowline.api import names
from bowline.testing.builders import pod
from tests.live import Live


def create_output(live: Live, gpus: str, dry: bool = True) -> str:
    limits = {"limits": {names.RESOURCE_GPU: gpus}}
    body = pod(containers=[{"name": "main", "image": "registry.example/app:1", "resources": limits}])
    body["metadata"].pop("namespace")
    flags = ["--dry-run=server"] if dry else []
    return live.kubectl("create", *flags, "-f", "-", objects=body).stderr


@pytest.mark.parametrize(
    ("gpus", "is_warned"),
    [pytest.param("999", True, id="more than any node has"), pytest.param("8", False, id="as many")],
)
def test_more_gpus_than_any_node_has_are_warned_about(strict_pair: Live, gpus: str, is_warned: bool) -> None:
    # The webhook is ready before it has read the nodes.
    strict_pair.until(
        "the webhook knows the nodes", lambda: "than any node" in create_output(strict_pair, "999") or None
    )
    assert ("than any node is labelled with" in create_output(strict_pair, gpus, dry=False)) is is_warned
    assert strict_pair.pod()["spec"]["containers"][0]["resources"]["limits"] == {names.RESOURCE_GPU: gpus}
