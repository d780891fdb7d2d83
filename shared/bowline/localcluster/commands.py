"""`python -m bowline.localcluster`: a cluster for manual use, with the chart installed and the pair running.

    demo      run the demo, then end
    up        start it in .cluster/ (of the checkout, or of the working directory) and leave it running
    down      end it and remove the folder
    status    list the running processes
    env       shell lines that point kubectl at it
    assets    supply the binaries, and report the duration

The commands only combine the other modules. Exit status: 0 success, 1 a failure that is explained on standard error,
2 invalid usage; `status` exits with 3 when nothing runs.
"""

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from bowline.localcluster.assets.cache import cache_root
from bowline.localcluster.assets.progress import Progress
from bowline.localcluster.assets.recipes import CLUSTER_TOOLS, KAI_PEERS, KAI_TOOLS, Tool
from bowline.localcluster.assets.supply import ensure_assets
from bowline.localcluster.checkout import is_checkout, require_checkout
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.demo import run_demo
from bowline.localcluster.errors import LocalClusterError
from bowline.localcluster.flags import Layout
from bowline.localcluster.helm import find_helm, helm_to_supply
from bowline.localcluster.nodes import EXAMPLE_LABELS, EXAMPLE_RESOURCES
from bowline.localcluster.pair import Pair, PairOptions
from bowline.localcluster.scheduler import start_scheduler
from bowline.localcluster.spec import ClusterSpec
from bowline.localcluster.state import absence, default_folder, later_command, load_state
from bowline.localcluster.watchdog import remove_cgroups

_NOT_RUNNING = 3
# All data that a process could still save is deleted right after.
_DOWN_GRACE_S = 2.0


def main(argv: Sequence[str]) -> int:
    """Run one command."""
    options = _parser().parse_args(argv)
    try:
        code: int = options.run(options)
    except LocalClusterError as error:
        print(f"localcluster: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("localcluster: interrupted", file=sys.stderr)
        return 1
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bowline.localcluster", description="A local Kubernetes control plane."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    up = commands.add_parser("up", help="start a cluster with the chart installed and leave it running")
    up.add_argument("--nodes", type=int, default=4, help="fake GPU nodes to create (default: 4)")
    up.add_argument("--no-chart", action="store_true", help="only the control plane and the nodes")
    what = "values of the chart, such as those that enable a plugin; may be repeated"
    up.add_argument("--values", type=Path, action="append", default=[], metavar="FILE", help=what)
    up.set_defaults(run=_up)
    demo = commands.add_parser("demo", help="demonstrate Bowline on a cluster of its own")
    demo.set_defaults(run=_demo)
    down = commands.add_parser("down", help="end the cluster and remove its folder")
    down.set_defaults(run=_down)
    status = commands.add_parser("status", help="show what runs")
    status.set_defaults(run=_status)
    env = commands.add_parser("env", help="print shell lines that point kubectl at the cluster")
    env.set_defaults(run=_env)
    assets = commands.add_parser("assets", help="download or build the binaries")
    assets.add_argument("--scheduler", action="store_true", help="kube-scheduler too")
    assets.add_argument("--kai", action="store_true", help="KAI-Scheduler and its podgrouper too")
    assets.add_argument(
        "--kai-peers", action="store_true", help="KAI-Scheduler's admission and binder, for benchmarks"
    )
    assets.set_defaults(run=_assets)
    for command in (up, down, status, env):
        command.add_argument("--data-dir", type=Path, default=default_folder(), help="default: .cluster")
    for command in (demo, up, assets):
        command.add_argument("--kubernetes", metavar="MINOR", help="such as 1.35 (default: $BOWLINE_KUBERNETES)")
    return parser


def _demo(options: argparse.Namespace) -> int:
    require_checkout("the demo")
    run_demo(options.kubernetes)
    return 0


def _up(options: argparse.Namespace) -> int:
    remove_ended(Layout(options.data_dir))
    progress = Progress()
    tools = CLUSTER_TOOLS if options.no_chart else (*CLUSTER_TOOLS, *helm_to_supply())
    assets = ensure_assets(tools, options.kubernetes, progress=progress)
    helm = None if options.no_chart else find_helm(progress)
    spec = ClusterSpec(kubernetes=options.kubernetes, data_dir=options.data_dir)
    cluster = Cluster.start(spec, assets=assets)
    print(f"Kubernetes {assets.release.kubernetes} is ready at {cluster.server} ({cluster.started_in_s:.1f} s)")
    try:
        nodes = cluster.make_nodes(options.nodes, labels=EXAMPLE_LABELS, resources=EXAMPLE_RESOURCES)
        cluster.make_runtime_class()
        if nodes:
            print(f"nodes: {nodes[0]} to {nodes[-1]}, 8 GPUs each")
        if helm is not None:
            files = (*PairOptions().values_files, *options.values)
            pair = Pair.install(cluster, helm, PairOptions(values_files=files))
            pair.start()
            print(f"the chart is installed in {pair.options.namespace}; webhook and reconciler are running")
            print(start_example_scheduler(cluster))
    except BaseException:
        # A partial cluster would only block the next `up`.
        cluster.stop()
        raise
    leave_running(cluster, options.data_dir)
    return 0


def start_example_scheduler(cluster: Cluster) -> str:
    """Start the example scheduler if this is a checkout; return a line that says who decides."""
    if not is_checkout():
        return (
            "no scheduler runs, the example scheduler is only in a checkout: start yours for pods of schedulerName "
            "example-scheduler, or of those in config.schedulerNames of --values, or create a BindRequest"
        )
    start_scheduler(cluster)
    return "the example scheduler decides for pods of schedulerName example-scheduler (examples/scheduler)"


def leave_running(cluster: Cluster, data_dir: Path) -> None:
    """Detach. Until here everything would have ended with this command."""
    cluster.detach()
    print(f'use it:  eval "$({later_command("env", data_dir)})"; kubectl get nodes')
    print(f"logs:    {cluster.layout.logs}")
    print(f"end it:  {later_command('down', data_dir)}")


def _down(options: argparse.Namespace) -> int:
    layout = Layout(options.data_dir)
    state = load_state(layout.state)
    if state is not None:
        for process in reversed(state.attached()):
            process.stop(_DOWN_GRACE_S)
            print(f"ended {process.name}")
    remove_cgroups(layout.cgroups)
    if not layout.root.exists():
        print("no cluster is there")
    elif _is_ours(layout):
        shutil.rmtree(layout.root)
        print(f"removed {layout.root}")
    else:
        raise LocalClusterError(f"{layout.root} is not a cluster's folder; nothing was removed")
    return 0


def _status(options: argparse.Namespace) -> int:
    state = load_state(Layout(options.data_dir).state)
    if state is None:
        print(absence(options.data_dir))
        return _NOT_RUNNING
    print(f"API server: {state.server}")
    running = True
    for process in state.attached():
        running = running and process.alive
        print(f"{process.name:28} {'running' if process.alive else 'ended':8} pid {process.pid:<8} {process.log}")
    return 0 if running else _NOT_RUNNING


def _env(options: argparse.Namespace) -> int:
    layout = Layout(options.data_dir.absolute())
    state = load_state(layout.state)
    if state is None:
        raise LocalClusterError(absence(options.data_dir))
    print(f"export KUBECONFIG={shlex.quote(str(layout.kubeconfig('admin')))}")
    print(f'export PATH={shlex.quote(str(Path(state.kubectl).parent))}:"$PATH"')
    return 0


def _assets(options: argparse.Namespace) -> int:
    progress = Progress()
    tools = [*CLUSTER_TOOLS, *helm_to_supply()]
    if options.scheduler:
        tools.append(Tool.SCHEDULER)
    if options.kai:
        tools += KAI_TOOLS
    if options.kai_peers:
        tools += KAI_PEERS
    assets = ensure_assets(tools, options.kubernetes, progress=progress)
    for tool, path in assets.paths.items():
        print(f"{tool:24} {path}")
    if Tool.HELM not in assets.paths:
        print(f"{'helm':24} {find_helm(progress).name}")
    print(f"all binaries are ready ({progress.elapsed_s:.0f} s); the cache is {cache_root(os.environ)}")
    return 0


def remove_ended(layout: Layout) -> None:
    """Clear the folder for `up` if an earlier cluster ended without `down`, as after a reboot.

    A folder with anything else in it is rejected, because `down` removes all of it.
    """
    state = load_state(layout.state)
    if state is not None and any(process.alive for process in state.attached()):
        raise LocalClusterError(
            f"a cluster is already running in {layout.root}; `{later_command('down', layout.root)}` ends it"
        )
    if _is_ours(layout):
        shutil.rmtree(layout.root)
    elif layout.root.exists() and any(layout.root.iterdir()):
        raise LocalClusterError(f"{layout.root} holds something else; give --data-dir a folder that is new or empty")


def _is_ours(layout: Layout) -> bool:
    """Whether the folder has the subfolders of a cluster; only then it is deleted."""
    return layout.pki.is_dir() and layout.logs.is_dir()
