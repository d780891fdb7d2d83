"""A plugin with a mistake that concerns the process: it ignores its cancellation, or blocks the event loop."""

from typing import Any

from bowline.localcluster.cluster import Cluster
from bowline.testing.builders import pod
from tests.live import LiveCluster
from tests.pair.conftest import BareReconcilers

CONFIG = """
apiVersion: config.bowline.dev/v1alpha1
kind: BowlineConfiguration
plugins: [{name: pair_mistakes}]
binding: {inFlightTimeout: 2s}
"""
MISTAKE = "mistakes.example/pre-bind"


def mistaken(name: str, mistake: str) -> dict[str, Any]:
    """A pod for which the plugin makes a mistake."""
    body = pod(name)
    body["metadata"]["annotations"] = {MISTAKE: mistake}
    return body


def test_a_process_whose_plugin_ignores_its_cancellation_ends_by_sigterm(
    bare_cluster: Cluster, bare_reconcilers: BareReconcilers
) -> None:
    live = LiveCluster(bare_cluster, "default")
    process = bare_reconcilers.start("ignores", CONFIG)
    live.create(mistaken("ignores", "ignore"))
    live.request_bind("ignores", backoffLimit=0)
    status = live.phase("ignores", "Failed")
    assert status["status"]["failure"]["reason"] == "BackoffLimitExceeded"
    process.stop()
    log = (bare_cluster.layout.logs / "ignores.log").read_text()
    assert "lease released" in log
    assert "exiting: tasks ignore their cancellation" in log
    assert "pair_mistakes.pre_bind" in log


def test_a_plugin_that_blocks_is_named_counted_and_does_not_stop_others(
    bare_cluster: Cluster, bare_reconcilers: BareReconcilers
) -> None:
    live = LiveCluster(bare_cluster, "default")
    replicas = [bare_reconcilers.start(name, CONFIG) for name in ("first", "second")]
    live.create(mistaken("blocks", "block"))
    live.request_bind("blocks")
    dead_replica = live.until(
        "a process ends", lambda: next((replica for replica in replicas if not replica.process.alive), None)
    )
    log = (bare_cluster.layout.logs / f"{dead_replica.name}.log").read_text()
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
                replicas[number] = bare_reconcilers.start(f"{replica.name}-again", CONFIG)
        phase = (live.request(name).get("status") or {}).get("phase")
        return phase if phase in ("Succeeded", "Failed") else None

    assert live.until("the other request ends", lambda: phase_with_restarts("healthy")) == "Succeeded"
    assert live.until("the blocked request ends", lambda: phase_with_restarts("blocks")) == "Failed"
    status = live.request("blocks")["status"]
    assert status["failedAttempts"] == 1, "the same request ends no second process"
    assert status["failure"]["reason"] == "BackoffLimitExceeded"
