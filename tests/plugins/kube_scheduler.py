"""kube-scheduler for comparisons: building it takes minutes, so tests that need it run where it is at hand."""

import os
from typing import Any

import pytest

from localcluster.assets.cache import Cache, cache_root
from localcluster.assets.recipes import Tool, recipe_for
from localcluster.assets.supply import folders_of, this_platform
from localcluster.assets.versions import release_for
from tests.live import LiveCluster


def is_at_hand() -> bool:
    """Whether it needs no build first."""
    recipe = recipe_for(Tool.SCHEDULER, release_for(None, os.environ), this_platform())
    folders = folders_of(os.environ)
    return Cache(cache_root(os.environ)).find(recipe) is not None or any(f.look(recipe).path for f in folders)


needs_kube_scheduler = pytest.mark.skipif(
    not is_at_hand(), reason="kube-scheduler is not at hand; `python -m localcluster assets --scheduler` supplies it"
)


def bound(live: LiveCluster, name: str) -> dict[str, Any]:
    """Wait until whoever schedules the pod has bound it; returns it."""

    def look() -> dict[str, Any] | None:
        found = live.pod(name)
        return found if found["spec"].get("nodeName") else None

    return live.until(f"pod {name} is bound", look)
