"""`python -m tests.localnode`: a cluster with one real node and fake GPUs, by hand and for `make test-node` (root).

    up        start it with the chart installed and leave it running; `python -m bowline.localcluster down` ends it
    assets    supply the binaries of the node

Exit status: 0 success, 1 a failure that is explained on standard error, 2 invalid usage.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from bowline.localcluster.assets.cache import cache_root
from bowline.localcluster.assets.progress import Progress
from bowline.localcluster.assets.recipes import CLUSTER_TOOLS, NODE_TOOLS, Tool
from bowline.localcluster.assets.supply import ensure_assets
from bowline.localcluster.commands import leave_running, remove_ended
from bowline.localcluster.errors import LocalClusterError
from bowline.localcluster.flags import Layout
from bowline.localcluster.helm import helm_to_supply
from bowline.localcluster.state import default_folder
from tests.localnode.cluster import NAMESPACE, install_chart, launch_node_cluster, node_spec, supply
from tests.localnode.settings import NODE_NAME

_GPUS = 4


def main(argv: Sequence[str]) -> int:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="python -m tests.localnode", description="A cluster with a real node.")
    parser.add_argument("command", choices=["up", "assets"])
    parser.add_argument("--data-dir", type=Path, default=default_folder(), help="default: .cluster")
    parser.add_argument("--kubernetes", metavar="MINOR", help="such as 1.35 (default: $BOWLINE_KUBERNETES)")
    options = parser.parse_args(argv)
    try:
        if options.command == "up":
            _up(options.kubernetes, options.data_dir)
        else:
            _assets(options.kubernetes)
    except LocalClusterError as error:
        print(f"localnode: {error}", file=sys.stderr)
        return 1
    return 0


def _up(kubernetes: str | None, data_dir: Path) -> None:
    remove_ended(Layout(data_dir))
    node = launch_node_cluster(node_spec(kubernetes, data_dir), _GPUS)
    cluster = node.cluster
    print(f"{NODE_NAME} runs Kubernetes {cluster.assets.release.kubernetes} ({cluster.started_in_s:.1f} s)")
    try:
        install_chart(node)
        print(f"the chart is installed in {NAMESPACE} and its pods are available")
    except BaseException:
        cluster.stop()
        raise
    leave_running(cluster, data_dir)


def _assets(kubernetes: str | None) -> None:
    progress = Progress()
    supply(kubernetes, progress)
    tools = (*CLUSTER_TOOLS, *helm_to_supply(), Tool.SCHEDULER, *NODE_TOOLS)
    for tool, path in ensure_assets(tools, kubernetes, progress=progress).paths.items():
        print(f"{tool:24} {path}")
    print(f"all binaries are ready ({progress.elapsed_s:.0f} s); the cache is {cache_root(os.environ)}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
