"""A plugin with a mistake that concerns the process: it ignores its cancellation, or blocks the event loop."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bowline.localcluster.checkout import CHECKOUT
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import access_words
from bowline.localcluster.ports import free_port
from bowline.localcluster.process import Launch
from bowline.localcluster.spec import ClusterSpec
from bowline.localcluster.workload import LocalProcess
from bowline.testing.builders import pod
from tests.live import LiveCluster
from tools.generate import crd

PLUGINS = Path(__file__).parent / "plugins"
CONFIG = """
apiVersion: config.bowline.dev/v1alpha1
kind: BowlineConfiguration
plugins: [{name: pair_mistakes}]
binding: {inFlightTimeout: 2s}
"""
MISTAKE = "mistakes.example/pre-bind"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster.start(ClusterSpec(controllers=())) as cluster:
        cluster.make_nodes(1)
        cluster.kubectl("apply", "--server-side", "-f", "-", input=crd.as_yaml())
        cluster.wait_established(crd.custom_resource_definition()["metadata"]["name"])
        yield cluster


def reconciler(cluster: Cluster, folder: Path, name: str) -> LocalProcess:
    config = folder / "config.yaml"
    config.write_text(CONFIG)
    metrics = f"127.0.0.1:{free_port()}"
    argv = (
        *(sys.executable, "-m", "bowline_reconciler", *access_words(cluster.kubeconfig), f"--config={config}"),
        *(f"--metrics-listen={metrics}", "--debug-listen=127.0.0.1:0"),
    )
    environment = {**os.environ, "PYTHONPATH": str(PLUGINS)}
    launch = Launch(name, argv, cluster.layout.logs / f"{name}.log", CHECKOUT, environment)
    process = LocalProcess(cluster.run_process(launch), "", metrics, cluster.kubeconfig)
    process.wait_ready()
    return process


def mistaken(name: str, mistake: str) -> dict[str, Any]:
    """A pod for which the plugin makes a mistake."""
    body = pod(name)
    body["metadata"]["annotations"] = {MISTAKE: mistake}
    return body


def test_a_process_whose_plugin_ignores_its_cancellation_ends_by_sigterm(cluster: Cluster, tmp_path: Path) -> None:
    live = LiveCluster(cluster, "default")
    process = reconciler(cluster, tmp_path, "ignores")
    live.create(mistaken("ignores", "ignore"))
    live.request_bind("ignores", backoffLimit=0)
    status = live.phase("ignores", "Failed")
    assert status["status"]["failure"]["reason"] == "BackoffLimitExceeded"
    process.stop()
    log = (cluster.layout.logs / "ignores.log").read_text()
    assert "lease released" in log
    assert "exiting: tasks ignore their cancellation" in log
    assert "pair_mistakes.pre_bind" in log


def test_a_plugin_that_blocks_is_named_counted_and_does_not_stop_others(cluster: Cluster, tmp_path: Path) -> None:
    live = LiveCluster(cluster, "default")
    replicas = [reconciler(cluster, tmp_path, name) for name in ("first", "second")]
    live.create(mistaken("blocks", "block"))
    live.request_bind("blocks")
    dead_replica = live.until(
        "a process ends", lambda: next((replica for replica in replicas if not replica.process.alive), None)
    )
    log = (cluster.layout.logs / f"{dead_replica.name}.log").read_text()
    assert "the event loop is blocked" in log
    assert "time.sleep(25)" in log
    assert '"plugin":"pair_mistakes"' in log.replace(" ", "")
    # The other replica leads because the Lease has been released.
    live.create(pod("healthy"))
    live.request_bind("healthy")

    def phase_with_restarts(name: str) -> str | None:
        """Return the final phase of a request. Restarts what has ended, as a kubelet does."""
        for number, replica in enumerate(replicas):
            if not replica.process.alive:
                replicas[number] = reconciler(cluster, tmp_path, f"{replica.name}-again")
        phase = (live.request(name).get("status") or {}).get("phase")
        return phase if phase in ("Succeeded", "Failed") else None

    assert live.until("the other request ends", lambda: phase_with_restarts("healthy")) == "Succeeded"
    assert live.until("the blocked request ends", lambda: phase_with_restarts("blocks")) == "Failed"
    status = live.request("blocks")["status"]
    assert status["failedAttempts"] == 1, "the same request ends no second process"
    assert status["failure"]["reason"] == "BackoffLimitExceeded"
