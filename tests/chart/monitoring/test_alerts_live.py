"""The chart's alerts in a real Prometheus that scrapes the pair: none in a healthy run, each in its fault.

Delays, windows and two limits are shortened (`prometheus.py`); `alerts_test.yaml` tests the real ones with simulated
series. The tests build on each other: a fault is left when the next one begins.
"""

import base64
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.pair import Pair
from bowline.localcluster.workload import WorkloadOptions
from bowline.testing.builders import bind_request
from bowline_webhook.bodies import MAX_BODY, MAX_HELD
from bowline_webhook.tls.ca import make_authority, sign_leaf, to_pem
from tests.chart.monitoring.binaries import find_binary
from tests.chart.monitoring.plugins.alert_faults import FAIL, FAULT, RAISE, RAISE_REVIEW, SLOW_REVIEW, WAIT
from tests.chart.monitoring.prometheus import DELAY_S, SCRAPE_S, Prometheus, shortened, start_prometheus, targets_of
from tests.chart.rendering import NAMESPACE, Chart
from tests.chart.test_rights_live import may
from tests.live import Live
from tests.pairs import own_namespace, running_pair
from tests.plugins.sharing import RESERVATIONS, Shares
from tests.waiting import wait_until

PLUGINS = str(Path(__file__).parent / "plugins")
VALUES: dict[str, object] = {
    "config.plugins": [{"name": "alert_binding"}, {"name": "alert_review"}],
    "pluginAccess": [{"plugin": "alert_review", "hooks": ["pods"]}],
    "config.gpuSharing": {"agentTimeout": "30s"},
}
POLICY = "validatingadmissionpolicy/bowline-reconciler-pods"
DENY_ALL = '{"spec": {"validations": [{"expression": "false", "message": "test", "reason": "Forbidden"}]}}'
ROLE = "/apis/rbac.authorization.k8s.io/v1/clusterroles/bowline-reconciler"
RECONCILER = f"system:serviceaccount:{NAMESPACE}:bowline-reconciler"
HOOKS = "validatingwebhookconfigurations,mutatingwebhookconfigurations"
GROUP = "unreserved"
pytestmark = pytest.mark.alerts
Monitored = tuple[Cluster, Pair, Prometheus]


@pytest.fixture(scope="module")
def scraped_pair(chart: Chart) -> Iterator[Monitored]:
    """A pair of its own, which the tests break."""
    binary = find_binary("prometheus")
    if binary is None:
        pytest.skip("needs prometheus, which is in Debian's package of that name")
    rules = chart.render({"monitoring": {"rules": {"enabled": True}}}).get("PrometheusRule", "bowline")["spec"]
    with running_pair(1, VALUES, WorkloadOptions(env={"PYTHONPATH": PLUGINS})) as (cluster, pair):
        yield cluster, pair, start_prometheus(binary, cluster, targets_of(pair), shortened(rules))


@pytest.fixture(scope="module")
def live(scraped_pair: Monitored) -> Iterator[Live]:
    """One namespace for all tests."""
    cluster, pair, _ = scraped_pair
    with own_namespace(cluster, pair) as namespace:
        yield namespace


def await_alert(prometheus: Prometheus, start: float, alert: str, **labels: str) -> None:
    """Wait until the alert has fired since the start, with the labels that name its cause."""
    expectation = {"alertname": alert, **labels}.items()
    wait_until(
        lambda: any(expectation <= each.items() for each in prometheus.fired_since(start)), f"{alert} {labels} fires"
    )


def bind(live: Live, name: str, fault: str, **request: Any) -> None:
    """Create a pod with a fault, and its request."""
    live.create_pod(name, {FAULT: fault})
    live.request_bind(name, **request)


def test_no_alert_fires_while_pods_are_bound_shared_and_denied(scraped_pair: Monitored, live: Live) -> None:
    _, _, prometheus = scraped_pair
    start = prometheus.now()
    shares = Shares(live)
    for number in range(20):
        live.create_pod(f"pod-{number}")
        live.request_bind(f"pod-{number}")
        live.phase(f"pod-{number}", "Succeeded")
    shares.share("user", GROUP)
    live.phase("user", "Succeeded")
    with pytest.raises(LocalApiError, match="gpu-fraction"):
        shares.make("denied", {"gpu-fraction": "2"})
    binds = 'bowline_requests_finished_total{reason="Succeeded"}'
    wait_until(lambda: prometheus.value(binds) >= 21, "the binds are scraped")
    # Whatever one of these scrapes reports would have fired by then.
    end = prometheus.now() + DELAY_S + 2 * SCRAPE_S
    wait_until(lambda: prometheus.now() > end, "the delays of alerts have passed")
    assert prometheus.fired_since(start) == []


def test_alerts_on_requests(scraped_pair: Monitored, live: Live) -> None:
    cluster, _, prometheus = scraped_pair
    start = prometheus.now()
    live.create_pod("outside")
    uid = live.pod("outside")["metadata"]["uid"]
    request = bind_request("outside", "gpu-node-0", live.namespace, uid)
    request["metadata"]["labels"] = {"pool": "elsewhere"}
    live.create(request)
    bind(live, "old", WAIT)
    bind(live, "raises", RAISE)  # waits for the plugin's repair (decision 280)
    for number in range(12):
        bind(live, f"fails-{number}", FAIL)
    for number in range(12):
        live.phase(f"fails-{number}", "Failed")
    roles = cluster.api.get(ROLE)["rules"]
    rules = [rule for rule in roles if "pods/binding" not in rule["resources"]]
    assert len(rules) == len(roles) - 1
    cluster.api.patch(ROLE, {"rules": rules})
    wait_until(lambda: not may(cluster, RECONCILER, "create", ":pods/binding"), "the right is removed")
    live.create_pod("forbidden")
    live.request_bind("forbidden", backoffLimit=0)
    await_alert(prometheus, start, "BowlineInstallationIncomplete", reason="RBACMissing")
    await_alert(prometheus, start, "BowlineDefect", plugin="alert_binding", point="pre_bind")
    await_alert(prometheus, start, "BowlineRequestsFailing")
    await_alert(prometheus, start, "BowlineRequestTooOld")
    cluster.api.patch(ROLE, {"rules": roles})


def test_alerts_on_reviews(scraped_pair: Monitored, live: Live) -> None:
    _, pair, prometheus = scraped_pair
    start = prometheus.now()
    with pytest.raises(LocalApiError, match="alert_review"):
        live.create_pod("raises", {FAULT: RAISE_REVIEW})
    for number in range(3):
        live.create_pod(f"slow-review-{number}", {FAULT: SLOW_REVIEW})
    assert pair.webhook is not None
    hold_large_bodies(pair.webhook.listen)
    await_alert(prometheus, start, "BowlineDefect", plugin="alert_review")
    await_alert(prometheus, start, "BowlineWebhookSlow")


def hold_large_bodies(address: str) -> None:
    """Send bodies without their last byte, until the webhook answers one of them 429."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    size = MAX_BODY - 1
    head = "POST /validate/pods?timeout=30s HTTP/1.1\r\nHost: w\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {size}\r\n\r\n"
    with ExitStack() as open_sockets:
        held = []
        for _ in range(MAX_HELD // MAX_BODY + 1):
            plain = open_sockets.enter_context(socket.create_connection((host, int(port)), timeout=30))
            connection = open_sockets.enter_context(context.wrap_socket(plain, server_hostname=host))
            connection.sendall(head.encode() + b" " * (size - 1))
            held.append(connection)
        assert b" 429 " in held[0].recv(100)


def test_a_webhook_whose_secret_was_deleted(scraped_pair: Monitored) -> None:
    cluster, pair, prometheus = scraped_pair
    start = prometheus.now()
    cluster.api.delete(f"/api/v1/namespaces/{NAMESPACE}/secrets/bowline-ca")
    await_alert(prometheus, start, "BowlineCertificateExpiring", pod="bowline-webhook-local")
    # What the runbook says.
    pair.upgrade({})
    restart(pair)
    wait_until(lambda: prometheus.value("bowline_ca_unwritable") == 0, "the webhook has a CA again")


def restart(pair: Pair) -> None:
    """Start the webhook again, at the same addresses."""
    assert pair.webhook is not None
    options = WorkloadOptions(
        listen=pair.webhook.listen, metrics_listen=pair.webhook.metrics, env={"PYTHONPATH": PLUGINS}
    )
    pair.webhook.stop()
    pair.launch_webhook(options).wait_ready()


def test_no_webhook_for_the_api_server(scraped_pair: Monitored, live: Live) -> None:
    _, pair, prometheus = scraped_pair
    start = prometheus.now()
    assert pair.webhook is not None
    metrics = pair.webhook.metrics
    pair.webhook.stop()
    unreachable = 'ALERTS{alertname="BowlineWebhookUnreachable",alertstate="firing"}'

    def fires() -> bool:
        with pytest.raises(LocalApiError, match=r"pods\.bowline\.dev"):
            live.create_pod("denied")
        return prometheus.value(unreachable) > 0

    wait_until(fires, "an alert about calls that fail")
    await_alert(prometheus, start, "BowlineWebhookUnreachable", name="pods.bowline.dev")
    await_alert(prometheus, start, "BowlineNoWebhook")
    options = WorkloadOptions(listen=pair.webhook.listen, metrics_listen=metrics, env={"PYTHONPATH": PLUGINS})
    pair.launch_webhook(options).wait_ready()


def test_a_serving_certificate_from_a_secret_that_is_not_renewed(scraped_pair: Monitored) -> None:
    cluster, pair, prometheus = scraped_pair
    start = prometheus.now()
    now = datetime.now(UTC)
    authority = make_authority(now, timedelta(days=365))
    leaf = sign_leaf(authority, ["127.0.0.1"], now, timedelta(hours=20))
    ca = base64.b64encode(to_pem([authority.certificate])).decode()
    for kind in HOOKS.split(","):
        path = f"/apis/admissionregistration.k8s.io/v1/{kind}/bowline-webhook"
        webhooks = cluster.api.get(path)["webhooks"]
        for webhook in webhooks:
            webhook["clientConfig"]["caBundle"] = ca
        cluster.api.patch(path, {"webhooks": webhooks})
    files = {"tls.crt": to_pem([leaf.certificate]), "tls.key": leaf.private_key}
    data = {name: content.decode() for name, content in files.items()}
    secret = {"metadata": {"name": "serving"}, "type": "kubernetes.io/tls", "stringData": data}
    cluster.api.post(f"/api/v1/namespaces/{NAMESPACE}/secrets", secret)
    pair.upgrade({"webhook.tls.mode": "secret", "webhook.tls.secretName": "serving"})
    restart(pair)
    await_alert(prometheus, start, "BowlineCertificateExpiring", certificate="leaf", pod="bowline-webhook-local")


def test_no_leader_then_a_watch_without_a_right_then_devices_that_nothing_reserves(
    scraped_pair: Monitored, live: Live
) -> None:
    """A policy of another version denies the pod that reserves the device."""
    cluster, pair, prometheus = scraped_pair
    start = prometheus.now()
    (reconciler,) = pair.reconcilers
    reconciler.stop()
    await_alert(prometheus, start, "BowlineNoLeader")
    cluster.kubectl("patch", POLICY, "--type=merge", f"--patch={DENY_ALL}")
    (reservation,) = Shares(live).reservations(GROUP)
    cluster.api.delete(f"{RESERVATIONS}/{reservation['metadata']['name']}")
    options = WorkloadOptions(metrics_listen=reconciler.metrics, env={"PYTHONPATH": PLUGINS})
    roles = cluster.api.get(ROLE)["rules"]
    cluster.api.patch(ROLE, {"rules": [rule for rule in roles if "persistentvolumeclaims" not in rule["resources"]]})
    wait_until(lambda: not may(cluster, RECONCILER, "list", ":persistentvolumeclaims"), "the right is removed")
    started = pair.launch_reconciler(options)
    await_alert(prometheus, start, "BowlineWatchLost", resource="persistentvolumeclaims")
    cluster.api.patch(ROLE, {"rules": roles})
    started.wait_ready()
    await_alert(prometheus, start, "BowlineDevicesUnreserved")
    await_alert(prometheus, start, "BowlineInstallationIncomplete", policy="reconciler-pods")


def test_a_webhook_without_its_configurations(scraped_pair: Monitored) -> None:
    cluster, pair, prometheus = scraped_pair
    cluster.kubectl("delete", POLICY)  # it was changed by another client, whose fields Helm does not take over
    pair.upgrade({"webhook.tls.mode": "self"})
    restart(pair)
    start = prometheus.now()
    cluster.kubectl("delete", HOOKS, "-l", "app.kubernetes.io/name=bowline")
    await_alert(prometheus, start, "BowlineNotReady", pod="bowline-webhook-local")
