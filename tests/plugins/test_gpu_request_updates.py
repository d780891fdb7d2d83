"""A pod's GPU request is fixed at creation, because the container's environment is fixed then."""

import json
from typing import Any

from bowline.api import names
from bowline.testing.builders import pod
from tests.live import Live

ASKED = {names.GPU_FRACTION: "0.5", names.MPS: "true", names.GPU_FRACTION_CONTAINER: "main"}


def stored_annotations(live: Live) -> dict[str, Any]:
    """Create the pod; returns its annotations as admitted."""
    body = pod("pod", live.namespace)
    body["metadata"]["annotations"] = ASKED
    live.create(body)
    annotations: dict[str, Any] = live.pod()["metadata"]["annotations"]
    return annotations


def denial(live: Live, annotations: dict[str, str | None]) -> str:
    """Return the API server's denial of a change of annotations; empty if it is stored."""
    patch = json.dumps({"metadata": {"annotations": annotations}})
    return live.kubectl("patch", "pod", "pod", "--type=merge", f"-p={patch}", check=False).stderr


def test_every_error_of_an_update_is_reported_and_foreign_fields_may_change(strict_pair: Live) -> None:
    stored_annotations(strict_pair)
    error = denial(strict_pair, {names.GPU_FRACTION: "0.4", names.MPS: None, names.GPU_MEMORY: "1"})
    for key in (names.GPU_FRACTION, names.MPS, names.GPU_MEMORY):
        assert error.count(f"metadata.annotations[{key}]") == 1
    assert denial(strict_pair, {"other": "1"}) == ""
    assert strict_pair.pod()["metadata"]["annotations"]["other"] == "1"


def test_owned_annotations_cannot_change_while_the_webhook_is_down(strict_pair: Live) -> None:
    """The policy does not cover updates: the validating hook of pods fails closed, and is called only for them."""
    before = stored_annotations(strict_pair)
    assert strict_pair.pair.webhook is not None
    strict_pair.pair.webhook.stop()
    try:
        assert "failed calling webhook" in denial(strict_pair, {names.GPU_FRACTION: "0.4"})
        assert denial(strict_pair, {"other": "1"}) == ""
        assert strict_pair.pod()["metadata"]["annotations"] == {**before, "other": "1"}
    finally:
        strict_pair.pair.launch_webhook().wait_ready()
