"""The demo: Bowline on a real control plane, with real commands and their real output.

It needs no input and ends by itself. Every scene also verifies its result, so that a wrong demo fails.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bowline.localcluster.assets.progress import Progress
from bowline.localcluster.assets.recipes import CLUSTER_TOOLS, Tool
from bowline.localcluster.assets.supply import ensure_assets
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalClusterError
from bowline.localcluster.helm import find_helm, helm_to_supply
from bowline.localcluster.pair import Pair, PairOptions
from bowline.localcluster.spec import ClusterSpec

MANIFESTS = Path("examples") / "demo"
NODES = 4
# Timeout for what a scene shows; long, for a busy machine.
PATIENCE_S = 120.0
_BOLD, _DIM, _RESET = ("\033[1m", "\033[2m", "\033[0m") if sys.stdout.isatty() else ("", "", "")


class StoryError(LocalClusterError):
    """A scene did not show the expected result."""


@dataclass(frozen=True, slots=True)
class DemoStage:
    """The cluster and the pair that the demo runs on."""

    cluster: Cluster
    pair: Pair

    def show(self, *args: str, fails: bool = False) -> str:
        """Run kubectl, printing command and output; return the output."""
        print(f"{_DIM}${_RESET} kubectl {' '.join(args)}")
        result = self.cluster.kubectl(*args, check=False)
        output = (result.stdout + result.stderr).rstrip()
        print(output + "\n")
        if (result.returncode != 0) is not fails:
            raise StoryError(f"kubectl {' '.join(args)} ended with {result.returncode}")
        return output

    def apply(self, name: str, fails: bool = False) -> str:
        """Apply a manifest, printing command and output."""
        return self.show("apply", "-f", str(MANIFESTS / name), fails=fails)

    def wait(self, condition: str, *args: str, until: Callable[[str], bool]) -> None:
        """Poll kubectl silently until `until` accepts its output. Raises StoryError after the timeout."""
        deadline = time.monotonic() + PATIENCE_S
        while not until(self.cluster.kubectl(*args, check=False).stdout):
            if time.monotonic() > deadline:
                raise StoryError(f"{condition} did not happen within {PATIENCE_S:.0f} s:\n{self.cluster.log_tails()}")
            time.sleep(0.1)


def run_demo(kubernetes: str | None) -> None:
    """Run the whole demo, and end the cluster."""
    progress = Progress()
    assets = ensure_assets((*CLUSTER_TOOLS, *helm_to_supply()), kubernetes, progress=progress)
    helm = find_helm(progress)
    began = time.monotonic()
    print("A real control plane: etcd, kube-apiserver, kube-controller-manager; kwok plays the kubelets.")
    with Cluster.start(ClusterSpec(kubernetes=kubernetes), assets=assets) as cluster:
        print(f"Kubernetes {assets.release.kubernetes}, ready in {cluster.started_in_s:.1f} s.")
        cluster.make_nodes(NODES)
        cluster.make_runtime_class()
        options = PairOptions()
        print(f"{_DIM}${_RESET} helm upgrade --install {options.release} charts/bowline -n {options.namespace}")
        pair = Pair.install(cluster, helm, options)
        pair.start()
        stage = DemoStage(cluster, pair)
        for scene in (_refused_pod, _refused_template, _bound, _explained):
            scene(stage)
    print(f"{_BOLD}That was Bowline, in {time.monotonic() - began:.0f} s.{_RESET}")
    print("Nothing is left running; make up starts a cluster that stays.")


def _refused_pod(stage: DemoStage) -> None:
    _title("An invalid GPU request is denied", "Three errors in one answer, each with its remedy.")
    output = stage.apply("1-bad-pod.yaml", fails=True)
    _expect(output, "annotations[gpu-fraction]", "annotations[gpu-fraction-num-devices]", "jupyter")


def _refused_template(stage: DemoStage) -> None:
    _title("So is a workload with a bad template", "Not hours later, in an event of a ReplicaSet.")
    output = stage.apply("2-bad-deployment.yaml", fails=True)
    _expect(output, "spec.template.metadata.annotations[gpu-fraction]")


def _bound(stage: DemoStage) -> None:
    _title("A good pod and a scheduler's decision", "The BindRequest names the node; Bowline binds the pod.")
    stage.apply("3-good-pod.yaml")
    _until_phase(stage, "train", "Succeeded")
    phase = ("get", "pod", "train", "-o", "jsonpath={.status.phase}")
    stage.wait("the pod runs", *phase, until=lambda output: output == "Running")
    _expect(stage.show("get", "bindrequests"), "gpu-node-0")
    stage.show("get", "pod", "train")


def _explained(stage: DemoStage) -> None:
    _title("A pod that waits is explained", "The cause, since when, until when, and what helps.")
    stage.apply("4-missing-claim.yaml")
    stage.wait("a report", "get", "bindrequest", "trainer", "-o", "jsonpath={.status.reason}", until=_names_dataset)
    print(f"{_DIM}${_RESET} bowline explain trainer")
    command = [sys.executable, "-m", "bowline_cli", "explain", "trainer", f"--kubeconfig={stage.cluster.kubeconfig}"]
    kubectl = stage.cluster.assets.path(Tool.KUBECTL).parent
    environment = {**os.environ, "PATH": f"{kubectl}{os.pathsep}{os.environ['PATH']}"}
    output = subprocess.run(command, capture_output=True, text=True, check=False, env=environment).stdout
    print(output)
    _expect(output, "dataset")


def _names_dataset(reason: str) -> bool:
    return "dataset" in reason


def _until_phase(stage: DemoStage, name: str, phase: str) -> None:
    stage.wait(
        f"{name} {phase}",
        *("get", "bindrequest", name, "-o", "jsonpath={.status.phase}"),
        until=lambda output: output == phase,
    )


def _title(title: str, meaning: str) -> None:
    print(f"\n{_BOLD}== {title}{_RESET}\n{meaning}\n", flush=True)


def _expect(output: str, *parts: str) -> None:
    missing = [part for part in parts if part not in output]
    if missing:
        raise StoryError(f"the output above was to contain {', '.join(missing)}")
