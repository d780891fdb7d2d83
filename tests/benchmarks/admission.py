"""Admission: the webhook by itself on one core beside a static answer, then its cost for a client that creates pods.

The webhook is the chart's, all default plugins on. In the first part it has one core, a loader another; its figures
are ratios to aiohttp with a static answer, called the same way in the same run. The second part,
``benchmarks.webhooks``, runs it beside KAI-Scheduler's admission. In the third it is called by the API server, which
creates pods (dry runs: nothing is written) with webhook and policy, with the policy alone, and with neither.
"""

import asyncio
import base64
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bowline.api import names
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import load_access
from bowline.kube.errors import Invalid
from bowline.kube.resources import PODS
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.helm import find_helm
from bowline.localcluster.kubeconfig import api_server
from bowline.localcluster.pair import Pair, PairOptions
from bowline.localcluster.spec import ClusterSpec
from bowline_webhook.hooks import Hook
from bowline_webhook.tls.ca import make_authority, sign_leaf, to_pem
from tests.benchmarks.https_load import Measured, Target
from tests.benchmarks.load import each
from tests.benchmarks.report import Figure, Report, percentile
from tests.benchmarks.reviews import (
    DRY_RUN,
    NAMESPACE,
    REVIEW_BYTES,
    SHARE,
    check_answer,
    fill,
    review_bodies,
    share_pod,
)
from tests.benchmarks.webhooks import QUICK_WEBHOOKS, WebhookSizes, compare, run_load

CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/bowline-webhook"
WEBHOOKS = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")
POLICY = ("validatingadmissionpolicybinding", "validatingadmissionpolicy")
HOOKS = {"mutate": Hook.MUTATE_PODS, "validate": Hook.VALIDATE_PODS, "templates": Hook.VALIDATE_WORKLOADS}
STATIC = "static answer"
READY_S, NOTICED_S = 60.0, 30.0


@dataclass(frozen=True, slots=True)
class AdmissionSizes:
    """Sizes of all parts."""

    seconds: float = 5.0  # of each combination
    connections: Sequence[int] = (1, 16, 64)
    pods: int = 2000  # created through the API server, each way
    at_once: int = 16
    beside: WebhookSizes = field(default_factory=WebhookSizes)


QUICK = AdmissionSizes(seconds=0.3, pods=100, beside=QUICK_WEBHOOKS)


async def bench_admission(sizes: AdmissionSizes) -> Report:
    """Measure all parts; takes seven minutes in full."""
    report = Report("Admission, one run on one machine")
    with Cluster.start(ClusterSpec(kwok=False, controllers=())) as cluster:
        pair = await asyncio.to_thread(
            Pair.install, cluster, find_helm(), PairOptions(set_values={"log.level": "warning"})
        )
        cluster.make_namespace(NAMESPACE)
        cluster.make_runtime_class()  # for shares
        webhook = pair.launch_webhook()
        webhook.wait_ready(READY_S)
        async with KubeClient(
            await load_access(api_server(cluster.kubeconfig)), ClientOptions(name="bench")
        ) as client:
            await _until(client, is_mutated=True)
            bodies = await review_bodies(client)
            _pin(webhook.pid, {_cores()[0]})
            await asyncio.to_thread(_by_itself, cluster, webhook.listen, bodies, sizes, report)
            _pin(webhook.pid, set(_cores()))
            await asyncio.to_thread(compare, cluster, bodies, sizes.beside, report)
            await _through_api_server(cluster, client, sizes, report)
    return report


# --- the webhook by itself ---


def _by_itself(
    cluster: Cluster, listen: str, bodies: Mapping[tuple[str, str], bytes], sizes: AdmissionSizes, report: Report
) -> None:
    hook = cluster.api.get(CONFIGURATION)["webhooks"][0]
    ours = (int(listen.rpartition(":")[2]), base64.b64decode(hook["clientConfig"]["caBundle"]).decode())
    busiest = 0.0
    with _static() as static:
        for kind in REVIEW_BYTES:
            for connections in sizes.connections:
                where = f"{kind}, {connections} conn."
                rows = [(STATIC, *static, "/", "mutate")]
                rows += [(word, *ours, path, word) for word, path in HOOKS.items()]
                for name, port, ca, path, word in rows:
                    body = bodies[word, kind].decode()
                    target = Target(port, ca, path, body, connections, sizes.seconds, _cores()[-1])
                    measurement = run_load(target)
                    check_answer(name, kind, measurement.body)
                    _add(report, name, where, measurement)
                    busiest = max(busiest, measurement.busy)
    report.add(Figure("the loader's core, at most in use", "%", (100 * busiest,)))


def _add(report: Report, name: str, where: str, measurement: Measured) -> None:
    against = "" if name == STATIC else f"{STATIC}: {where}"
    for suffix, unit, value in (
        ("", "req/s", measurement.rate),
        (", p50", "ms", measurement.p50_ms),
        (", p99", "ms", measurement.p99_ms),
    ):
        baseline = f"{against}{suffix}" if against else ""
        report.add(Figure(f"{name}: {where}{suffix}", unit, (value,), baseline))


@contextmanager
def _static() -> Iterator[tuple[int, str]]:
    """Run the static answer on the webhook's core; yields its port and CA."""
    now, life = datetime.now(UTC), timedelta(days=1)
    leaf = sign_leaf(make_authority(now, life), ["127.0.0.1"], now, life)
    with tempfile.TemporaryDirectory() as folder:
        pem = Path(folder) / "pem"
        pem.touch(mode=0o600)
        pem.write_bytes(leaf.pem())
        command = [sys.executable, "-m", "tests.benchmarks.static_answer", str(pem), str(_cores()[0])]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                line = process.stdout.readline() if process.stdout else ""
                yield int(line), to_pem([leaf.signer]).decode()
            finally:
                process.kill()


def _cores() -> list[int]:
    """The available cores; with only one, server and loader share it and the figures mean little."""
    return sorted(os.sched_getaffinity(0))


def _pin(pid: int, cores: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


# --- through the API server ---


async def _through_api_server(cluster: Cluster, client: KubeClient, sizes: AdmissionSizes, report: Report) -> None:
    await _creations(client, sizes.pods // 4, sizes.at_once)  # warm
    ways: dict[str, tuple[Sequence[float], float]] = {}
    for way, kinds in (("webhook and policy", ()), ("policy alone", WEBHOOKS), ("neither", POLICY)):
        for kind in kinds:
            await asyncio.to_thread(cluster.kubectl, "delete", kind, "--all")
        if kinds == WEBHOOKS:
            await _until(client, is_mutated=False)
        if kinds == POLICY:
            await _until_no_denial(client)
        one_by_one, _ = await _creations(client, sizes.pods // 4, 1)
        _, rate = await _creations(client, sizes.pods, sizes.at_once)
        ways[way] = (one_by_one, rate)
    for way, (took, rate) in reversed(ways.items()):
        bare = "" if way == "neither" else "neither"
        for name, unit, value in (
            (f"pods created, {sizes.at_once} at a time", "pods/s", rate),
            ("a pod created, p50", "ms", 1000 * percentile(took, 0.5)),
            ("a pod created, p99", "ms", 1000 * percentile(took, 0.99)),
        ):
            report.add(Figure(f"{way}: {name}", unit, (value,), f"{bare}: {name}" if bare else ""))
    for share in (0.5, 0.99):
        slow, fast = (percentile(ways[way][0], share) for way in ("webhook and policy", "policy alone"))
        report.add(Figure(f"added by the webhook, p{100 * share:.0f}", "ms", (1000 * (slow - fast),)))


async def _creations(client: KubeClient, count: int, at_once: int) -> tuple[list[float], float]:
    """Create pods as dry runs; returns the duration of each and the rate per second."""
    body = share_pod()
    await fill(client, body, REVIEW_BYTES[SHARE])
    took: list[float] = []

    async def create_pod(_: int) -> None:
        began = time.perf_counter()
        await client.create(PODS, NAMESPACE, body, params=DRY_RUN)
        took.append(time.perf_counter() - began)

    return took, count / await each(count, create_pod, at_once)


async def _until(client: KubeClient, is_mutated: bool) -> None:
    """Wait until the API server calls the webhook, or no longer does: it watches the configurations."""
    async with asyncio.timeout(NOTICED_S):
        while True:
            dry_run_pod = await client.create(PODS, NAMESPACE, share_pod(), params=DRY_RUN)
            if (names.SHARED_GPU_CONFIGMAP in dry_run_pod["metadata"]["annotations"]) == is_mutated:
                return
            await asyncio.sleep(0.05)


async def _until_no_denial(client: KubeClient) -> None:
    """Wait until the API server's watch has delivered the policy's deletion."""
    bad = share_pod()
    bad["metadata"]["annotations"][names.GPU_FRACTION] = "2"
    async with asyncio.timeout(NOTICED_S):
        while True:
            try:
                await client.create(PODS, NAMESPACE, bad, params=DRY_RUN)
            except Invalid:
                await asyncio.sleep(0.05)
            else:
                return
