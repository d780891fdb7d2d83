"""A pod's GPU request is fixed at creation, because the container's environment is fixed then."""

import json

from bowline.api import names
from tests.live import Live

ASKED = {names.GPU_FRACTION: "0.5", names.MPS: "true", names.GPU_FRACTION_CONTAINER: "main"}


def denial(live: Live, annotations: dict[str, str | None]) -> str:
    """Return the API server's denial of a change of annotations; empty if it is stored."""
    patch = json.dumps({"metadata": {"annotations": annotations}})
    return live.kubectl("patch", "pod", "pod", "--type=merge", f"-p={patch}", check=False).stderr


def test_every_error_of_an_update_is_reported_and_foreign_fields_may_change(strict_pair: Live) -> None:
    strict_pair.create_pod(annotations=ASKED)
    error = denial(strict_pair, {names.GPU_FRACTION: "0.4", names.MPS: None, names.GPU_MEMORY: "1"})
    for key in (names.GPU_FRACTION, names.MPS, names.GPU_MEMORY):
        assert error.count(f"metadata.annotations[{key}]") == 1
    assert denial(strict_pair, {"other": "1"}) == ""
    assert strict_pair.pod()["metadata"]["annotations"]["other"] == "1"
