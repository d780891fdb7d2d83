"""``bowline plugin run``: a local cluster with Bowline and a plugin, until Ctrl-C."""

import argparse
import shlex
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bowline.framework.config import Settings
from bowline.framework.plugin import Plugin
from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalClusterError
from bowline.localcluster.helm import find_helm
from bowline.localcluster.nodes import EXAMPLE_LABELS, EXAMPLE_RESOURCES
from bowline.localcluster.pair import Pair, PairOptions
from bowline.localcluster.spec import ClusterSpec
from bowline.plugins.catalog import plugin_access
from bowline_cli import plugin_target
from bowline_cli.terminal import printable

EXIT_USAGE = 2
_NODES = 3
# In scope by default.
_SCHEDULER_NAME = "bowline"


def run(options: argparse.Namespace) -> int:
    """Run until interrupted; return the exit status."""
    try:
        plugin = plugin_target.loaded(options.plugin)
        instance = plugin(plugin.config_model(**options.args), Settings())
        values = chart_values(instance, options.args, options.scheduler_names)
        helm = find_helm()
        with Cluster.start(ClusterSpec()) as cluster:
            cluster.make_nodes(_NODES, labels=EXAMPLE_LABELS, resources=EXAMPLE_RESOURCES)
            cluster.make_runtime_class()
            Pair.install(cluster, helm, PairOptions(set_values=values)).start()
            sys.stdout.write(usage(cluster, plugin.name, options.scheduler_names))
            sys.stdout.flush()
            _wait_for_signal()
    except (plugin_target.TargetError, LocalClusterError, ValueError) as error:
        sys.stderr.write(f"bowline plugin run: {printable(str(error))}\n")
        return EXIT_USAGE
    return 0


def chart_values(plugin: Plugin, args: Mapping[str, Any], scheduler_names: Sequence[str]) -> dict[str, object]:
    """Return the chart's values: the plugin enabled, its access granted, these schedulers' pods in scope as well."""
    return {
        "config.plugins": [{"name": plugin.name, "args": dict(args)}],
        "config.schedulerNames": list(dict.fromkeys((*Settings().scheduler_names, *scheduler_names))),
        "pluginAccess": plugin_access([plugin]),
    }


def _wait_for_signal() -> None:
    """Wait for SIGINT or SIGTERM, also where a shell has started the command with SIGINT ignored."""
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()


def usage(cluster: Cluster, name: str, scheduler_names: Sequence[str]) -> str:
    """Return what to do with the cluster."""
    kubectl = Path(cluster.assets.path(Tool.KUBECTL))
    scheduler_name = scheduler_names[0] if scheduler_names else _SCHEDULER_NAME
    return (
        f"Bowline with the plugin {name} is running; Ctrl-C ends it. In another terminal:\n"
        f"  export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))} PATH={shlex.quote(str(kubectl.parent))}:$PATH\n"
        f"  kubectl apply -f pod.yaml   # with schedulerName: {scheduler_name}\n"
        "  bowline bind POD --node=gpu-node-0\n"
        "  kubectl get bindrequests,pods\n"
        f"A scheduler of your own: start it in that terminal instead of `bowline bind`, for pods with schedulerName "
        f"{scheduler_name}{'' if scheduler_names else '; --scheduler-name adds yours'}\n"
        f"  python -m bowline.conformance --scheduler COMMAND --name {scheduler_name}   # on a cluster of its own\n"
        f"logs: {cluster.layout.logs}\n"
    )
