"""kube-scheduler for comparisons: building it takes minutes, so tests that need it run where it is available."""

from typing import Any

import pytest

from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.assets.supply import at_hand
from tests.live import LiveCluster

needs_kube_scheduler = pytest.mark.skipif(
    not at_hand([Tool.SCHEDULER]),
    reason="kube-scheduler is not at hand; `python -m bowline.localcluster assets --scheduler` supplies it",
)


def bound(live: LiveCluster, name: str) -> dict[str, Any]:
    """Wait until the pod's scheduler has bound it; returns it."""

    def bound_pod() -> dict[str, Any] | None:
        stored_pod = live.pod(name)
        return stored_pod if stored_pod["spec"].get("nodeName") else None

    return live.until(f"pod {name} is bound", bound_pod)
