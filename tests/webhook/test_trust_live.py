"""How API servers come to trust a self-signed webhook, on a real one: first start and obstacles.

Replacing certificates under load is in `test_tls`.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509
from prometheus_client import CollectorRegistry

from bowline.api import names
from bowline.api.meta import ObjectKey
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import load_access
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.helm import find_helm
from bowline.localcluster.kubeconfig import api_server
from bowline.localcluster.pair import Pair, PairOptions
from bowline.localcluster.ports import free_port
from bowline.localcluster.spec import ClusterSpec
from bowline.localcluster.workload import LocalProcess, WorkloadOptions, start_workload
from bowline.runtime.tasks import cancel_and_wait
from bowline.testing.builders import pod
from bowline.testing.clock import SteppedClock
from bowline_webhook.tls.ca import from_pem, to_pem
from bowline_webhook.tls.ca_controller import CAController, SelfSignedConfig
from bowline_webhook.tls.metrics import CertificateMetrics
from bowline_webhook.tls.serving import ServingContext
from tests.live import LiveCluster
from tests.pairs import local_chart
from tests.waiting import LIMIT_S

NAMESPACE, WEBHOOK = "bowline-system", "bowline-webhook"
SECRETS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
SECRET = f"{SECRETS}/bowline-ca"
HOOKS = "/apis/admissionregistration.k8s.io/v1/{}webhookconfigurations/bowline-webhook"
MUTATING, VALIDATING = HOOKS.format("mutating"), HOOKS.format("validating")
PODS = "/api/v1/namespaces/default/pods?dryRun=All"
LIFE = timedelta(days=1)


@pytest.fixture(scope="module")
def cluster_and_pair() -> Iterator[tuple[Cluster, Pair]]:
    """A cluster with the chart; no process runs."""
    with Cluster.start(ClusterSpec(kwok=False, controllers=())) as cluster:
        yield cluster, Pair.install(cluster, find_helm(), PairOptions(chart=local_chart(cluster)))


@pytest.fixture(scope="module")
def rendered_secret(cluster_and_pair: tuple[Cluster, Pair]) -> dict[str, Any]:
    """The Secret of the CA as the chart renders it, without data."""
    secret = cluster_and_pair[0].api.get(SECRET)
    metadata = {key: value for key, value in secret["metadata"].items() if key in ("name", "labels", "annotations")}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": secret["type"]}


@pytest.fixture
def live(cluster_and_pair: tuple[Cluster, Pair], rendered_secret: dict[str, Any]) -> Iterator[LiveCluster]:
    """The cluster without a CA and with empty CA bundles; processes that a test starts are stopped after it."""
    cluster, pair = cluster_and_pair
    live = LiveCluster(cluster, "default")
    if not live.not_found(SECRET):
        cluster.api.delete(SECRET)
    # As Helm does it, in a hundredth of the time.
    apply = f"{SECRET}?fieldManager=helm&force=true"
    cluster.api.request("PATCH", apply, rendered_secret, "application/apply-patch+yaml")
    trust(cluster, b"")
    yield live
    pair.stop()


def trust(cluster: Cluster, bundle: bytes) -> None:
    """Set the CA bundle of every entry of both configurations."""
    for path in (MUTATING, VALIDATING):
        entries = cluster.api.get(path)["webhooks"]
        value = base64.b64encode(bundle).decode()
        patch = [
            {"op": "add", "path": f"/webhooks/{i}/clientConfig/caBundle", "value": value} for i in range(len(entries))
        ]
        cluster.api.patch(path, patch, "application/json-patch+json")


def trusted_bundles(cluster: Cluster) -> set[bytes]:
    """The distinct CA bundles of all entries."""
    entries = [entry for path in (MUTATING, VALIDATING) for entry in cluster.api.get(path)["webhooks"]]
    return {base64.b64decode(entry["clientConfig"].get("caBundle") or "") for entry in entries}


def bundle(cluster: Cluster) -> bytes:
    return base64.b64decode(cluster.api.get(SECRET)["data"]["ca.crt"])


def not_ready(process: LocalProcess, word: str = "") -> str | None:
    """Return its not-ready text if that contains the word, else None."""
    try:
        status, text = process.get("/readyz")
    except OSError:
        return None
    return text if status == 503 and word in text else None


def answers(live: LiveCluster) -> bool:
    """Whether the API server receives responses; otherwise it receives connection errors."""
    try:
        live.cluster.api.post(PODS, pod("probe"))
    except LocalApiError:
        return False
    return True


def test_replicas_that_start_together_agree_on_one_ca(
    cluster_and_pair: tuple[Cluster, Pair], live: LiveCluster
) -> None:
    cluster = live.cluster
    replica_options = [WorkloadOptions(name=f"together-{n}", listen=f"127.0.0.1:{free_port()}") for n in range(3)]
    replicas = [start_workload(cluster, NAMESPACE, WEBHOOK, options) for options in replica_options]
    for replica in replicas:
        replica.wait_ready()
    (certificate,) = from_pem(bundle(cluster))
    assert trusted_bundles(cluster) == {to_pem([certificate])}
    repairs = sum('step":"repair"' in replica.log.read_text() for replica in replicas)
    assert repairs == 1, "one replica creates it, the others use it"
    for path in (MUTATING, VALIDATING):
        managers = {
            m["manager"] for m in cluster.api.get(path)["metadata"]["managedFields"] if "caBundle" in json.dumps(m)
        }
        assert names.FIELD_MANAGER_CABUNDLE in managers
    for replica in replicas:
        assert replica.stop()


def test_the_ca_is_published_again_after_an_upgrade_or_a_manual_change(
    cluster_and_pair: tuple[Cluster, Pair], live: LiveCluster
) -> None:
    cluster, pair = cluster_and_pair
    process = pair.launch_webhook()
    process.wait_ready()
    live.until("it is called", lambda: answers(live))
    before = trusted_bundles(cluster)
    pair.upgrade({"config.binding": {"workers": 7}})
    assert trusted_bundles(cluster) == before == {bundle(cluster)}
    assert answers(live)
    trust(cluster, b"")
    live.until("it has written it again", lambda: trusted_bundles(cluster) == before)
    live.until("it is called again", lambda: answers(live))
    # The emergency procedure must not prevent the webhook from starting again.
    cluster.api.delete(VALIDATING)
    live.until("the gate is deleted", lambda: live.not_found(VALIDATING))
    process.wait_ready()
    cluster.api.delete(MUTATING)
    live.until("it reports what is missing", lambda: not_ready(process, "there is no "))
    pair.upgrade()
    process.wait_ready()
    assert trusted_bundles(cluster) == before


def test_a_missing_right_is_reported_and_the_webhook_is_not_ready(
    cluster_and_pair: tuple[Cluster, Pair], live: LiveCluster
) -> None:
    cluster, pair = cluster_and_pair
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings/{WEBHOOK}"
    role_binding = cluster.api.get(path)
    cluster.api.delete(path)
    role = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{WEBHOOK}"
    rules = cluster.api.get(role)["rules"]
    reading = [{**rule, "verbs": [verb for verb in rule["verbs"] if verb != "patch"]} for rule in rules]
    cluster.api.patch(role, {"rules": reading}, "application/merge-patch+json")
    process = pair.launch_webhook()
    text = live.until("it reports the missing right", lambda: not_ready(process, "not granted"))
    assert "secrets in namespace bowline-system" in text
    role_binding["metadata"] = {"name": WEBHOOK, "namespace": NAMESPACE}
    cluster.api.post(path.rpartition("/")[0], role_binding)
    text = live.until("API servers do not trust its CA", lambda: not_ready(process, "webhookconfigurations"))
    assert "patch" in text
    cluster.api.patch(role, {"rules": rules}, "application/merge-patch+json")
    process.wait_ready()


def test_a_missing_secret_is_named_with_the_remedy_and_costs_no_readiness(
    cluster_and_pair: tuple[Cluster, Pair], live: LiveCluster
) -> None:
    """The webhook has no right to create one: with it, it could have the token of any account."""
    cluster, pair = cluster_and_pair
    process = pair.launch_webhook()
    process.wait_ready()
    before = from_pem(bundle(cluster))
    cluster.api.delete(SECRET)
    live.until("it reports what is missing", lambda: "bowline-ca is missing" in process.log.read_text())
    assert "helm upgrade or kubectl --namespace bowline-system create secret generic" in process.log.read_text()
    assert process.get("/readyz")[0] == 200
    pair.upgrade()
    live.until("it reports that it is empty", lambda: "there is no valid signer" in process.log.read_text())
    assert process.get("/readyz")[0] == 200
    replica = WorkloadOptions(name="started-later", listen=f"127.0.0.1:{free_port()}")
    started_later = start_workload(cluster, NAMESPACE, WEBHOOK, replica)
    started_later.wait_ready()
    assert set(before) < set(from_pem(bundle(cluster))), "the CA of the replica that serves remains trusted"
    live.until("it reports nothing more", lambda: "bowline_ca_unwritable 0.0" in process.get("/metrics")[1])
    assert process.get("/readyz")[0] == 200
    assert started_later.stop()


@asynccontextmanager
async def ca_controller(
    live: LiveCluster, clock: SteppedClock, serving: ServingContext
) -> AsyncIterator[CAController]:
    """The controller of the CA's Secret, until the block ends."""
    config = SelfSignedConfig(ObjectKey(NAMESPACE, "bowline-ca"), ("127.0.0.1",), WEBHOOK)
    access = load_access(api_server(live.cluster.kubeconfig))
    async with KubeClient(access, ClientOptions(clock=clock)) as client, asyncio.timeout(LIMIT_S):
        controller = CAController(client, serving, config, CertificateMetrics(CollectorRegistry()))
        task = asyncio.create_task(controller.run())
        try:
            yield controller
        finally:
            await cancel_and_wait(task)


async def passes_until(controller: CAController, condition: Callable[[], bool]) -> None:
    """Run passes until the condition holds."""
    while not condition():
        controller.wake()
        await asyncio.sleep(0.05)


async def test_a_rotation_of_two_replicas_serves_only_what_is_trusted(live: LiveCluster) -> None:
    clock, replicas = SteppedClock(datetime.now(UTC)), (ServingContext(), ServingContext())

    def signers() -> set[x509.Certificate]:
        """The CAs of what the replicas serve, each of which every webhook entry trusts."""
        leaves = [replica.leaf for replica in replicas if replica.leaf is not None]
        for trusted_bundle in trusted_bundles(live.cluster):
            assert {leaf.signer for leaf in leaves} <= {*from_pem(trusted_bundle)}
        return {leaf.signer for leaf in leaves} if len(leaves) == len(replicas) else set()

    async with ca_controller(live, clock, replicas[0]) as one, ca_controller(live, clock, replicas[1]) as two:

        async def until(condition: Callable[[], bool]) -> None:
            while not condition():
                one.wake()
                two.wake()
                await asyncio.sleep(0.05)
                clock.step(timedelta(seconds=5))

        await until(lambda: one.not_ready_reason() is None and two.not_ready_reason() is None)
        (former,) = signers()
        clock.step(timedelta(days=244))
        await passes_until(one, lambda: len(from_pem(bundle(live.cluster))) == 2)
        await until(lambda: former not in signers() and len(signers()) == 1)
        (current,) = signers()
        clock.step(timedelta(days=7))
        await until(lambda: trusted_bundles(live.cluster) == {to_pem([current])})


def test_a_pod_beyond_a_mebibyte_is_validated(cluster_and_pair: tuple[Cluster, Pair], live: LiveCluster) -> None:
    _, pair = cluster_and_pair
    process = pair.launch_webhook()
    process.wait_ready()
    live.until("it is called", lambda: answers(live))
    large = pod("large")
    large["spec"]["containers"][0]["env"] = [{"name": f"V{n}", "value": "x" * 1000} for n in range(1300)]
    assert len(json.dumps(large)) > 1024 * 1024
    assert live.cluster.api.post(PODS, large)["metadata"]["name"] == "large"
    large["metadata"]["annotations"] = {names.GPU_FRACTION: "2"}
    with pytest.raises(LocalApiError, match="denied the request"):
        live.cluster.api.post(PODS, large)
