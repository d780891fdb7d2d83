"""A plugin ignores its cancellation, or blocks the event loop; and a process that starts without an API server."""

from typing import Any

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.workload import LocalProcess
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
    live.until("the request waits", lambda: "took longer than 0.5 s" in str(live.request("ignores").get("status")))
    process.stop()
    log = (bare_cluster.layout.logs / "ignores.log").read_text()
    assert "lease released" in log
    assert "exiting: tasks ignore their cancellation" in log
    assert "pair_mistakes.pre_bind" in log
    live.kubectl("delete", "bindrequest", "ignores")


def test_a_plugin_that_blocks_is_named_and_its_request_set_aside_while_the_others_go_on(
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
    live.phase("healthy", "Succeeded")
    text = "plugin pair_mistakes: pre_bind blocked the event loop"
    status = live.until(
        "the next leader reports it",
        lambda: text in (live.request("blocks")["status"].get("reason") or "") and live.request("blocks")["status"],
    )
    assert (status["phase"], status.get("failedAttempts", 0), status.get("suggestion")) == ("Pending", 0, None)
    assert sum(replica.process.alive for replica in replicas) == 1, "the same request ends no second process"
    live.kubectl("delete", "bindrequest", "blocks")
    next(replica for replica in replicas if replica.process.alive).stop()


def test_an_api_server_unavailable_at_start_is_awaited(
    bare_cluster: Cluster, bare_reconcilers: BareReconcilers
) -> None:
    bare_cluster.stop_apiserver()
    process = bare_reconcilers.start("early", is_awaited=False)
    live = LiveCluster(bare_cluster, "default")
    live.until("it answers that it is not ready", lambda: _not_ready(process))
    bare_cluster.start_apiserver()
    process.wait_ready()
    live.create(pod("early"))
    live.request_bind("early")
    live.phase("early", "Succeeded")
    assert process.stop()


def _not_ready(process: LocalProcess) -> str | None:
    try:
        status, text = process.get("/readyz")
    except OSError:
        return None
    return text if status == 503 else None
