"""kube-scheduler for comparisons: building it takes minutes, so tests that need it run where it is at hand."""

import os

import pytest

from localcluster.assets.cache import Cache, cache_root
from localcluster.assets.recipes import Tool, recipe_for
from localcluster.assets.supply import folders_of, this_platform
from localcluster.assets.versions import release_for


def is_at_hand() -> bool:
    """Whether it needs no build first."""
    recipe = recipe_for(Tool.SCHEDULER, release_for(None, os.environ), this_platform())
    folders = folders_of(os.environ)
    return Cache(cache_root(os.environ)).find(recipe) is not None or any(f.look(recipe).path for f in folders)


needs_kube_scheduler = pytest.mark.skipif(
    not is_at_hand(), reason="kube-scheduler is not at hand; `python -m localcluster assets --scheduler` supplies it"
)
