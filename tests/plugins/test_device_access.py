"""What the API server stores for containers without a GPU, ephemeral ones included."""

import json
from typing import Any

from bowline.api import names
from tests.live import Live

VOID = {"name": names.VISIBLE_DEVICES, "value": "void"}
ALL = {"name": names.VISIBLE_DEVICES, "value": "all"}


def container(name: str = "main", *env: dict[str, str], **rest: Any) -> dict[str, Any]:
    return {"name": name, "image": "registry.example/app:1", **({"env": list(env)} if env else {}), **rest}


def debug(live: Live, *containers: dict[str, Any]) -> Any:
    body = json.dumps({"spec": {"ephemeralContainers": list(containers)}})
    return live.kubectl(
        "patch", "pod", "pod", "--subresource=ephemeralcontainers", "--type=strategic", f"--patch={body}", check=False
    )


def test_an_ephemeral_container_gets_no_gpu(strict_pair: Live) -> None:
    strict_pair.create_pod()
    result = debug(strict_pair, container("one", ALL))
    assert result.returncode != 0
    assert "spec.ephemeralContainers[0].env[0].value" in result.stderr
    assert debug(strict_pair, container("one")).returncode == 0
    assert debug(strict_pair, container("two", VOID)).returncode == 0
    ephemeral_containers = strict_pair.pod()["spec"]["ephemeralContainers"]
    assert {c["name"]: c["env"] for c in ephemeral_containers} == {"one": [VOID], "two": [VOID]}
