"""How API servers come to trust a webhook, on a real one: first start, obstacles, certificates from files.

Replacing certificates under load is in tests/availability. Faults 26 to 31 of the field that need an API server to be
shown are here, with their numbers.
"""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import pytest
from cryptography import x509
from prometheus_client import CollectorRegistry

from bowline.api import names
from bowline.api.meta import ObjectKey
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import load_access
from bowline.localcluster.certs import LocalAuthority
from bowline.localcluster.checkout import CHECKOUT
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.helm import find_helm
from bowline.localcluster.kubeconfig import access_words, api_server
from bowline.localcluster.pair import Pair, PairOptions
from bowline.localcluster.ports import free_port
from bowline.localcluster.process import Launch
from bowline.localcluster.spec import ClusterSpec
from bowline.localcluster.workload import LocalProcess, WorkloadOptions, start_workload
from bowline.runtime.tasks import cancel_and_wait
from bowline.testing.builders import pod
from bowline.testing.clock import SteppedClock
from bowline_webhook.tls.ca import from_pem, is_valid_at, make_authority, sign_leaf, to_pem
from bowline_webhook.tls.ca_bundle import Configurations
from bowline_webhook.tls.ca_controller import CAController, SelfSignedConfig
from bowline_webhook.tls.metrics import CertificateMetrics
from bowline_webhook.tls.rotation import CertLifetimes
from bowline_webhook.tls.secret import read_secret
from bowline_webhook.tls.serving import ServingContext
from tests.live import LiveCluster
from tests.pairs import local_chart
from tests.waiting import LIMIT_S
from tests.webhook.process import command, environment

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


@pytest.fixture
def live(cluster_and_pair: tuple[Cluster, Pair]) -> Iterator[LiveCluster]:
    """The cluster without a CA and with empty CA bundles; processes that a test starts are stopped after it."""
    cluster, pair = cluster_and_pair
    # Without data, as the chart renders it.
    cluster.kubectl("delete", "secret", "bowline-ca", f"--namespace={NAMESPACE}", "--ignore-not-found")
    pair.upgrade()
    trust(cluster, b"")
    yield LiveCluster(cluster, "default")
    pair.stop()


class StartFromFiles(Protocol):
    """Starts a webhook with a certificate from files, by default at the address in the webhook configurations."""

    def __call__(
        self, folder: Path, certificate: bytes, key: bytes, *flags: str, listen: str = ""
    ) -> LocalProcess: ...


@pytest.fixture
def from_files(live: LiveCluster) -> Iterator[StartFromFiles]:
    """Stops its processes after the test, also after a failure: the next test uses the same address."""
    cluster = live.cluster
    with ExitStack() as stack:

        def start(folder: Path, certificate: bytes, key: bytes, *flags: str, listen: str = "") -> LocalProcess:
            (folder / "tls.crt").write_bytes(certificate)
            (folder / "tls.key").write_bytes(key)
            url = cluster.api.get(VALIDATING)["webhooks"][0]["clientConfig"]["url"]
            address, metrics = listen or url.split("/")[2], f"127.0.0.1:{free_port()}"
            files = (f"--tls-cert-file={folder / 'tls.crt'}", f"--tls-private-key-file={folder / 'tls.key'}")
            access = (*access_words(cluster.kubeconfig), f"--webhook-configuration={WEBHOOK}", "--drain=0s")
            argv = [*command(*files, *access, *flags), f"--listen={address}", f"--metrics-listen={metrics}"]
            log = folder / "webhook.log"
            launch = Launch(f"webhook-from-files-{folder.name}", argv, log, CHECKOUT, dict(environment()))
            process = LocalProcess(cluster.run_process(launch), address, metrics, cluster.kubeconfig)
            stack.callback(process.stop)
            return process

        yield start


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


def authorities(cluster: Cluster) -> set[frozenset[x509.Certificate]]:
    """The certificates of these CA bundles, in any order."""
    return {frozenset(from_pem(pem)) for pem in trusted_bundles(cluster)}


def wait_for_bundles(live: LiveCluster, expected: frozenset[x509.Certificate]) -> None:
    """Wait until every entry trusts these and writing has stopped: ten reads in a row are equal."""
    reads: list[object] = []

    def stable() -> bool:
        reads.append([live.cluster.api.get(path)["metadata"]["generation"] for path in (MUTATING, VALIDATING)])
        return authorities(live.cluster) == {expected} and reads[-10:].count(reads[-1]) == len(reads[-10:]) == 10

    live.until("all of them are trusted and no write follows", stable)


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


def test_a_webhook_is_not_ready_before_the_api_server_can_verify_it(
    cluster_and_pair: tuple[Cluster, Pair], live: LiveCluster, from_files: StartFromFiles, tmp_path: Path
) -> None:
    """A certificate from files whose CA another component must publish: this process cannot make itself ready."""
    now = datetime.now(UTC)
    signer, stranger = make_authority(now, LIFE), make_authority(now, LIFE)
    leaf = sign_leaf(signer, ["127.0.0.1"], now, LIFE)
    process = from_files(tmp_path, to_pem([leaf.certificate]), leaf.private_key)
    reason = live.until("it is not ready", lambda: not_ready(process, "does not verify"))
    assert "127.0.0.1: its webhook entry's caBundle does not verify the serving certificate" in reason
    trust(live.cluster, to_pem([stranger.certificate]))
    assert live.until("it still is not", lambda: not_ready(process))
    trust(live.cluster, to_pem([stranger.certificate, signer.certificate]))
    process.wait_ready()
    trust(live.cluster, to_pem([stranger.certificate]))
    live.until("it is not ready again", lambda: not_ready(process))
    assert process.stop()


def test_a_certificate_for_another_name_is_not_ready(
    live: LiveCluster, from_files: StartFromFiles, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    signer = make_authority(now, LIFE)
    leaf = sign_leaf(signer, ["webhook.example"], now, LIFE)
    trust(live.cluster, to_pem([signer.certificate]))
    process = from_files(tmp_path, to_pem([leaf.certificate]), leaf.private_key)
    live.until("it reports the name", lambda: not_ready(process, "IP address mismatch"))
    assert process.stop()


def test_a_renewed_file_is_served_and_its_ca_published(
    live: LiveCluster, from_files: StartFromFiles, tmp_path: Path
) -> None:
    now = datetime.now(UTC)
    old, new = make_authority(now, LIFE), make_authority(now, LIFE)
    leaf = sign_leaf(old, ["127.0.0.1"], now, LIFE)
    (tmp_path / "ca.crt").write_bytes(to_pem([old.certificate]))
    process = from_files(
        tmp_path, to_pem([leaf.certificate]), leaf.private_key, f"--tls-ca-file={tmp_path / 'ca.crt'}"
    )
    process.wait_ready()
    assert trusted_bundles(live.cluster) == {to_pem([old.certificate])}
    (tmp_path / "ca.crt").write_bytes(to_pem([new.certificate, old.certificate]))
    trust_both = {frozenset({old.certificate, new.certificate})}
    live.until("both are trusted", lambda: authorities(live.cluster) == trust_both)
    leaf = sign_leaf(new, ["127.0.0.1"], now, LIFE)
    (tmp_path / "tls.crt").write_bytes(to_pem([leaf.certificate]))
    (tmp_path / "tls.key").write_bytes(leaf.private_key)
    live.until("it is served", lambda: "serving the renewed certificate" in process.log.read_text())
    process.wait_ready()
    assert process.stop()


def test_replicas_with_different_files_keep_each_others_cas_published(
    live: LiveCluster, from_files: StartFromFiles, tmp_path: Path
) -> None:
    """Kubelets update a renewed file at different times; until all have, every signer must be trusted."""
    now = datetime.now(UTC)
    signers = [make_authority(now, LIFE) for _ in range(2)]
    replicas = []
    for index, signer in enumerate(signers):
        folder = tmp_path / str(index)
        folder.mkdir()
        (folder / "ca.crt").write_bytes(to_pem([signer.certificate]))
        leaf = sign_leaf(signer, ["127.0.0.1"], now, LIFE)
        listen = f"127.0.0.1:{free_port()}"
        flag = f"--tls-ca-file={folder / 'ca.crt'}"
        pem = to_pem([leaf.certificate])
        replicas.append(from_files(folder, pem, leaf.private_key, flag, listen=listen))
    wait_for_bundles(live, frozenset(signer.certificate for signer in signers))
    for replica in replicas:
        replica.wait_ready()
    for replica in replicas:
        assert replica.stop()


def test_self_signed_and_file_replicas_keep_each_others_cas(
    cluster_and_pair: tuple[Cluster, Pair], live: LiveCluster, from_files: StartFromFiles, tmp_path: Path
) -> None:
    """As in a rollout that changes webhook.tls.mode from secret to self."""
    _, pair = cluster_and_pair
    theirs = LocalAuthority("theirs")
    (tmp_path / "ca.crt").write_bytes(theirs.pem)
    serving = theirs.server(("localhost",))
    flag, listen = f"--tls-ca-file={tmp_path / 'ca.crt'}", f"127.0.0.1:{free_port()}"
    files = from_files(tmp_path, serving.certificate, serving.key, flag, listen=listen)
    files.wait_ready()
    signed = pair.launch_webhook()
    signed.wait_ready()
    wait_for_bundles(live, frozenset(from_pem(bundle(live.cluster) + theirs.pem)))
    files.wait_ready()
    signed.wait_ready()
    assert files.stop()


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


def test_a_missing_right_to_its_secret_is_reported(cluster_and_pair: tuple[Cluster, Pair], live: LiveCluster) -> None:
    cluster, pair = cluster_and_pair
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings/{WEBHOOK}"
    role_binding = cluster.api.get(path)
    cluster.api.delete(path)
    process = pair.launch_webhook()
    text = live.until("it reports the missing right", lambda: not_ready(process, "not granted"))
    assert "secrets in namespace bowline-system" in text
    role_binding["metadata"] = {"name": WEBHOOK, "namespace": NAMESPACE}
    cluster.api.post(path.rpartition("/")[0], role_binding)
    process.wait_ready()


def test_no_upgrade_changes_the_ca_that_the_webhook_has_written(
    cluster_and_pair: tuple[Cluster, Pair], live: LiveCluster
) -> None:
    cluster, pair = cluster_and_pair
    pair.launch_webhook().wait_ready()
    before = cluster.api.get(SECRET)
    pair.upgrade({"log.level": "debug"})
    after = cluster.api.get(SECRET)
    assert (after["data"], after["metadata"]["annotations"]) == (before["data"], before["metadata"]["annotations"])
    # As Helm 3 upgrades: a three-way merge with the previous manifest.
    secret_json = cluster.kubectl("get", "secret", "bowline-ca", f"-n={NAMESPACE}", "-o=json").stdout
    shell = {key: value for key, value in json.loads(secret_json).items() if key in ("apiVersion", "kind", "type")}
    shell["metadata"] = {"name": "bowline-ca", "namespace": NAMESPACE, "labels": {"helm.sh/chart": "bowline-9"}}
    for version in ("bowline-8", "bowline-9"):
        shell["metadata"]["labels"] = {"helm.sh/chart": version}
        cluster.kubectl("apply", "-f", "-", input=json.dumps(shell))
    assert cluster.api.get(SECRET)["data"] == before["data"]


def test_a_missing_secret_is_named_with_the_remedy_and_costs_no_readiness(
    cluster_and_pair: tuple[Cluster, Pair], live: LiveCluster
) -> None:
    """The webhook has no right to create one: with it, it could have the token of any account."""
    cluster, pair = cluster_and_pair
    process = pair.launch_webhook()
    process.wait_ready()
    before = read_secret(cluster.api.get(SECRET)).active
    cluster.api.delete(SECRET)
    live.until("it reports what is missing", lambda: "bowline-ca is missing" in process.log.read_text())
    assert "helm upgrade or kubectl --namespace bowline-system create secret generic" in process.log.read_text()
    assert process.get("/readyz")[0] == 200
    pair.upgrade()
    live.until("it is written again", lambda: "data" in cluster.api.get(SECRET))
    assert read_secret(cluster.api.get(SECRET)).active == before, "the CA that this process has cached still signs"


@asynccontextmanager
async def ca_controller(
    live: LiveCluster, clock: SteppedClock, serving: ServingContext
) -> AsyncIterator[CAController]:
    """The controller of the CA's Secret, until the block ends."""
    lifetimes = CertLifetimes(leaf=timedelta(days=7), authority=timedelta(days=365), grace=timedelta(seconds=30))
    config = SelfSignedConfig(ObjectKey(NAMESPACE, "bowline-ca"), lifetimes, ("127.0.0.1",))
    access = await load_access(api_server(live.cluster.kubeconfig))
    async with KubeClient(access, ClientOptions(clock=clock)) as client, asyncio.timeout(LIMIT_S):
        configurations = Configurations(client, [WEBHOOK], lambda: None)
        controller = CAController(client, configurations, serving, config, CertificateMetrics(CollectorRegistry()))
        runs = (controller.run(), *(reflector.run() for reflector in configurations.reflectors.values()))
        tasks = [asyncio.create_task(run) for run in runs]
        try:
            yield controller
        finally:
            for task in tasks:
                await cancel_and_wait(task)


async def passes_until(controller: CAController, condition: Callable[[], bool]) -> None:
    """Run passes until the condition holds."""
    while not condition():
        controller.periodic.wake()
        await asyncio.sleep(0.05)


async def test_a_denied_step_prevents_neither_a_renewal_nor_a_start(live: LiveCluster) -> None:
    """The Secret was made immutable, or a right removed; its signer is valid for months."""
    clock, serving = SteppedClock(datetime.now(UTC)), ServingContext()

    def serves(context: ServingContext) -> bool:
        return context.leaf is not None and is_valid_at(context.leaf.certificate, clock.now())

    async with ca_controller(live, clock, serving) as controller:
        await passes_until(controller, lambda: serves(serving))
        live.cluster.api.patch(SECRET, {"immutable": True}, "application/merge-patch+json")
        clock.step(timedelta(days=250))
        await passes_until(controller, lambda: controller.periodic.problem is not None)
        await passes_until(controller, lambda: serves(serving))
    trust(live.cluster, b"")
    after_restart = ServingContext()
    async with ca_controller(live, clock, after_restart) as controller:
        await passes_until(controller, lambda: serves(after_restart))
        await passes_until(controller, lambda: trusted_bundles(live.cluster) == {bundle(live.cluster)})
        await passes_until(controller, lambda: controller.periodic.problem is not None)


def test_its_own_namespace_and_kube_system_need_no_webhook(
    cluster_and_pair: tuple[Cluster, Pair], live: LiveCluster
) -> None:
    """No webhook runs: covered objects are denied; those that a start of the webhook needs are not covered."""
    trust(live.cluster, to_pem([make_authority(datetime.now(UTC), LIFE).certificate]))
    assert not answers(live)
    for namespace in (NAMESPACE, "kube-system"):
        path = PODS.replace("/default/", f"/{namespace}/")
        assert live.cluster.api.post(path, pod("own", namespace))["metadata"]["name"] == "own"


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
