"""Alerts in a real Prometheus that scrapes the pair: none fires over a healthy run, some fire with their fault.

Their delays and windows are shortened. The faults of the other alerts take longer than a test (certificates that
expire, half an hour without progress) or are defects of the product; promtool simulates them (`test_monitoring.py`).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.pair import Pair
from bowline.localcluster.workload import WorkloadOptions
from tests.chart.prometheus import WINDOW_S, Prometheus, start_prometheus
from tests.chart.promtool import find_tool
from tests.live import Live
from tests.pairs import own_namespace, running_pair
from tests.plugins.sharing import Shares
from tests.waiting import wait_until

HOOKS = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
BINDINGS = "validatingadmissionpolicy/bowline-reconciler-bindings"
DENY_ALL = '{"spec": {"validations": [{"expression": "false", "message": "denied by a test"}]}}'
Monitored = tuple[Cluster, Pair, Prometheus]


@pytest.fixture(scope="module")
def monitored() -> Iterator[Monitored]:
    """A pair of its own, which the tests break."""
    binary: Path | None = find_tool("prometheus")
    if binary is None:
        pytest.skip("needs prometheus, which is in Debian's package of that name")
    with running_pair(1, {"config.gpuSharing": {"fakeGPUs": True}}) as (cluster, pair):
        yield cluster, pair, start_prometheus(binary, cluster, pair)


@pytest.fixture
def live(monitored: Monitored) -> Iterator[Live]:
    """A namespace; before and after the test no alert fires."""
    cluster, pair, prometheus = monitored
    wait_until(lambda: prometheus.firing() == set(), "no alert fires before")
    with own_namespace(cluster, pair) as namespace:
        yield namespace
    wait_until(lambda: prometheus.firing() == set(), "no alert fires after")


def fires(prometheus: Prometheus, alert: str) -> None:
    wait_until(lambda: alert in prometheus.firing(), f"{alert} fires")


def test_no_alert_fires_while_pods_are_bound(monitored: Monitored, live: Live) -> None:
    _, _, prometheus = monitored
    seen: set[str] = set()
    for number in range(20):
        live.create_pod(f"pod-{number}")
        live.request_bind(f"pod-{number}")
        live.phase(f"pod-{number}", "Succeeded")
        seen |= prometheus.firing()
    finished = 'sum(bowline_requests_finished_total{reason="Succeeded"})'
    wait_until(lambda: prometheus.value(finished) >= 20, "the binds are scraped")
    start = prometheus.value("time()")
    # The windows of all alerts contain the binds, and then no longer.
    wait_until(
        lambda: prometheus.firing() or prometheus.value("time()") > start + WINDOW_S, "the windows have passed"
    )
    assert seen | prometheus.firing() == set()


def test_no_leader(monitored: Monitored, live: Live) -> None:
    _, pair, prometheus = monitored
    address = pair.reconcilers[0].metrics
    pair.reconcilers[0].stop()
    fires(prometheus, "BowlineNoLeader")
    pair.launch_reconciler(WorkloadOptions(metrics_listen=address)).wait_ready()


def test_a_webhook_that_is_not_ready_and_requests_that_fail(monitored: Monitored, live: Live) -> None:
    """Without webhook configurations; pods with a share are then not prepared, so their requests fail."""
    cluster, pair, prometheus = monitored
    cluster.kubectl("delete", HOOKS, "-l", "app.kubernetes.io/name=bowline")
    try:
        fires(prometheus, "BowlineNotReady")
        shares = Shares(live)
        for number in range(5):
            shares.make(f"share-{number}")
            shares.ask(f"share-{number}", ["g"])
            live.phase(f"share-{number}", "Failed")
        fires(prometheus, "BowlineRequestsFailing")
    finally:
        pair.upgrade()


def test_a_policy_of_bowline_that_denies_its_writes(monitored: Monitored, live: Live) -> None:
    cluster, pair, prometheus = monitored
    cluster.kubectl("patch", BINDINGS, "--type=merge", f"--patch={DENY_ALL}")
    try:
        live.create_pod("denied")
        live.request_bind("denied")
        fires(prometheus, "BowlineOwnPolicyDenies")
    finally:
        # Helm keeps what it does not know to have changed.
        cluster.kubectl("delete", BINDINGS)
        pair.upgrade()
    live.phase("denied", "Succeeded")
