"""Webhooks compared: Bowline's, KAI-Scheduler's admission and, if given, Bowline's of another checkout.

Each has the same core, one TLS certificate and the same reviews of a GPU share; a loader has another core. They are
called in alternating rounds, because other work on the machine changes from round to round. Besides rates and
latencies there is CPU time per review, which such work disturbs least. No API server calls them.
"""

import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson

from bowline.framework import structure
from bowline.framework.admission import AdmissionChain
from bowline.framework.config import Settings
from bowline.framework.registry import Registry
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import load_access
from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.checkout import CHECKOUT
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.kubeconfig import api_server
from bowline.localcluster.ports import free_ports
from bowline.localcluster.spec import ClusterSpec
from bowline.plugins.catalog import BUILTINS
from bowline_webhook.bodies import MAX_BODY, MAX_HELD
from bowline_webhook.hooks import Hook
from bowline_webhook.review import MAX_VALUES, decode_review, encode_answer, review_object
from bowline_webhook.tls.ca import make_authority, sign_leaf, to_pem
from tests.benchmarks.https_load import Measured, Target
from tests.benchmarks.report import Figure, Report
from tests.benchmarks.reviews import NAMESPACE, check_answer, filled, review_bodies, share_pod
from tests.benchmarks.rig import OTHER, resident_mb, source_roots
from tests.kai.team import peer_program

SCHEDULER = share_pod()["spec"]["schedulerName"]
KAI, BOWLINE = "KAI-Scheduler", "Bowline"
# The budgets of Bowline's rate divided by KAI-Scheduler's, and of its 99th percentile.
BUDGETS = {"mutate": ">= 2.40", "validate": ">= 1.10"}
LARGEST_BUDGET = "<= 50 ms"
_HOST = "127.0.0.1"
_READY_S, _LOADER_SLACK_S = 60.0, 60.0


@dataclass(frozen=True, slots=True)
class WebhookSizes:
    """Sizes of all parts."""

    seconds: float = 4.0  # of each webhook and hook in each round
    rounds: int = 7
    connections: int = 16


@dataclass(frozen=True, slots=True)
class Contestant:
    """A running webhook: its process, its port and the paths of its hooks."""

    name: str
    pid: int
    port: int
    paths: Mapping[str, str]


async def bench_webhooks(sizes: WebhookSizes, checkout: Path | None = None) -> Report:
    """Measure all of them; takes three minutes in full. ``checkout``: the folder of another version of Bowline."""
    report = Report("Webhooks beside each other")
    with Cluster.start(ClusterSpec(kwok=False, controllers=())) as cluster:
        cluster.make_namespace(NAMESPACE)
        cluster.make_runtime_class()  # for shares
        async with KubeClient(load_access(api_server(cluster.kubeconfig)), ClientOptions(name="bench")) as client:
            bodies = await review_bodies(client, await filled(client, share_pod()))
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            ca = _write_certificate(folder)
            contestants = [
                stack.enter_context(_kai(cluster, folder, ca)),
                stack.enter_context(_bowline(CHECKOUT, folder, ca, BOWLINE)),
            ]
            if checkout is not None:
                contestants.append(stack.enter_context(_bowline(checkout, folder, ca, OTHER)))
            reviews = {"mutate": bodies["mutate"], "validate": _mutated(bodies["validate"])}
            _rounds(contestants, ca, reviews, sizes, report)
            _worst(contestants[1], ca, sizes, report)
    return report


# --- rounds ---


def _rounds(
    contestants: Sequence[Contestant], ca: str, reviews: Mapping[str, bytes], sizes: WebhookSizes, report: Report
) -> None:
    for hook, body in reviews.items():
        rounds: dict[str, list[Measured]] = {contestant.name: [] for contestant in contestants}
        for number in range(sizes.rounds):
            for contestant in contestants if number % 2 else reversed(contestants):
                path, pid = contestant.paths[hook], contestant.pid
                target = Target(
                    contestant.port, ca, path, body.decode(), sizes.connections, sizes.seconds, _last(), server=pid
                )
                measurement = _run_load(target)
                check_answer(measurement.body, is_patched=hook == "mutate")
                rounds[contestant.name].append(measurement)
        for name, figures in rounds.items():
            _add(report, f"{name}: {hook}", figures, f"{KAI}: {hook}" if name != KAI else "", BUDGETS[hook])


def _add(report: Report, name: str, figures: Sequence[Measured], against: str, budget: str) -> None:
    is_ours = name.startswith(f"{BOWLINE}:")
    columns: Sequence[tuple[str, str, Callable[[Measured], float], str]] = (
        ("", "req/s", lambda figure: figure.rate, budget),
        (", p50", "ms", lambda figure: figure.p50_ms, ""),
        (", p99", "ms", lambda figure: figure.p99_ms, "<= 1.00"),
        (", CPU per review", "us", lambda figure: figure.cpu_us, ""),
    )
    for suffix, unit, column, limit in columns:
        values = tuple(column(figure) for figure in figures)
        comparison = f"{against}{suffix}" if against else ""
        report.add(Figure(f"{name}{suffix}", unit, values, comparison, limit if is_ours else ""))


# --- the worst permitted load ---


def _worst(ours: Contestant, ca: str, sizes: WebhookSizes, report: Report) -> None:
    """Send as many of the largest reviews as are held together; then time each of them by itself, in this process."""
    settings = Settings()
    chain = AdmissionChain(Registry(BUILTINS).build(settings), settings)
    slowest: tuple[float, ...] = (0.0,)
    for body in _largest():
        target = Target(
            ours.port, ca, ours.paths["mutate"], body.decode(), MAX_HELD // MAX_BODY, sizes.seconds, _last()
        )
        _run_load(target)
        took = tuple(_review_ms(body, chain) for _ in range(sizes.rounds))
        slowest = max(slowest, took, key=min)
    report.add(Figure("largest permitted review, CPU", "ms", slowest, "", LARGEST_BUDGET))
    report.add(Figure("memory at the worst permitted load", "MB", (resident_mb(ours.pid, "VmHWM"),)))


def _largest() -> Iterator[bytes]:
    """Yield reviews of the largest permitted size: by bytes, by values, by containers and their resources."""
    room = MAX_BODY - 4096
    yield _share_review({"note": "\U0001f600" + "x" * room}, {})
    values = MAX_VALUES - 100
    yield _share_review({}, {"tolerations": [{}] * (values // 2)})
    annotations = {f"key-{number}": "x" * (room // values - 24) for number in range(values)}
    yield _share_review(annotations, {})
    limits = {f"example.com/device-{number}": "1" for number in range(structure.MAX_RESOURCES // 512)}
    env = [{"name": f"SETTING_{number}", "value": "x"} for number in range(40)]
    containers = [
        {"name": f"c{number}", "image": "i", "env": env, "resources": {"limits": limits}}
        for number in range(structure.MAX_CONTAINERS)
    ]
    yield _share_review({}, {"containers": containers})


def _share_review(annotations: Mapping[str, str], spec: Mapping[str, object]) -> bytes:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "large", "annotations": {"gpu-fraction": "0.5", **annotations}},
        "spec": {"schedulerName": SCHEDULER, "containers": [{"name": "main"}], **spec},
    }
    request = {
        "uid": "largest",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "namespace": NAMESPACE,
        "operation": "CREATE",
        "object": pod,
    }
    body = orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    if len(body) > MAX_BODY:
        raise ValueError(f"the review has {len(body)} bytes, more than are permitted")
    return body


def _review_ms(body: bytes, chain: AdmissionChain) -> float:
    began = time.process_time()
    review = decode_review(body)
    encode_answer(review, review_object(Hook.MUTATE_PODS, review, chain))
    return 1000 * (time.process_time() - began)


def _mutated(body: bytes) -> bytes:
    """Return the review as it is after mutation: no webhook of this cluster has mutated the pod."""
    settings = Settings()
    chain = AdmissionChain(Registry(BUILTINS).build(settings), settings)
    document, review = orjson.loads(body), decode_review(body)
    review_object(Hook.MUTATE_PODS, review, chain)  # in place
    document["request"]["object"] = review.object
    return orjson.dumps(document)


# --- processes ---


def _write_certificate(folder: Path) -> str:
    """Write the certificate and the key of all webhooks; return the CA to verify it with, as PEM."""
    now, life = datetime.now(UTC), timedelta(days=1)
    leaf = sign_leaf(make_authority(now, life), [_HOST], now, life)
    (folder / "tls.crt").write_bytes(to_pem([leaf.certificate]))
    (folder / "tls.key").touch(mode=0o600)
    (folder / "tls.key").write_bytes(leaf.private_key)
    return to_pem([leaf.signer]).decode()


@contextmanager
def _bowline(checkout: Path, folder: Path, ca: str, name: str) -> Iterator[Contestant]:
    """Run a checkout's webhook until the block ends, with the certificate of ``_write_certificate`` in the folder."""
    port, metrics = free_ports(2)
    argv = [
        sys.executable,
        "-m",
        "bowline_webhook",
        f"--listen={_HOST}:{port}",
        f"--metrics-listen={_HOST}:{metrics}",
    ]
    argv += [f"--tls-cert-file={folder / 'tls.crt'}", f"--tls-private-key-file={folder / 'tls.key'}"]
    argv += ["--log-level=warning"]
    roots = os.pathsep.join(map(str, source_roots(checkout)))
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": roots, "HOME": str(folder)}
    paths = {"mutate": Hook.MUTATE_PODS.value, "validate": Hook.VALIDATE_PODS.value}
    with _running(name, argv, env, checkout, folder, port, ca) as pid:
        yield Contestant(name, pid, port, paths)


@contextmanager
def _kai(cluster: Cluster, folder: Path, ca: str) -> Iterator[Contestant]:
    """Run KAI-Scheduler's admission as its operator does, but with a log of errors only."""
    program = peer_program(Tool.KAI_ADMISSION)
    # Where controller-runtime reads a certificate.
    serving = folder / "kai" / "k8s-webhook-server" / "serving-certs"
    serving.mkdir(parents=True)
    for file in ("tls.crt", "tls.key"):
        (serving / file).symlink_to(folder / file)
    port, metrics, probes = free_ports(3)
    argv = [str(program), f"--webhook-addr={port}", f"--metrics-bind-address={_HOST}:{metrics}"]
    argv += [f"--health-probe-bind-address={_HOST}:{probes}", "--gpu-sharing-enabled=true"]
    argv += [f"--scheduler-name={SCHEDULER}", "--zap-log-level=error"]
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "TMPDIR": str(folder / "kai"),
        "KUBECONFIG": str(cluster.kubeconfig),
    }
    with _running(KAI, argv, env, folder, folder, port, ca) as pid:
        yield Contestant(KAI, pid, port, {"mutate": "/mutate--v1-pod", "validate": "/validate--v1-pod"})


@contextmanager
def _running(
    name: str, argv: Sequence[str], env: Mapping[str, str], cwd: Path, folder: Path, port: int, ca: str
) -> Iterator[int]:
    """Run a webhook on the first core until the block ends; raises RuntimeError with its log if it does not start."""
    log = folder / f"{name}.log"
    cores = os.sched_getaffinity(0)
    # Inherited, so that Go counts one core as well.
    os.sched_setaffinity(0, {min(cores)})
    try:
        with log.open("wb") as output:
            process = subprocess.Popen(argv, env=env, cwd=cwd, stdout=output, stderr=output)
    finally:
        os.sched_setaffinity(0, cores)
    try:
        _await(port, ca, lambda: process.poll() is None, log)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _await(port: int, ca: str, is_alive: Callable[[], bool], log: Path) -> None:
    trust, deadline = ssl.create_default_context(cadata=ca), time.monotonic() + _READY_S
    while is_alive() and time.monotonic() < deadline:
        try:
            with (
                socket.create_connection((_HOST, port), timeout=_READY_S) as plain,
                trust.wrap_socket(plain, server_hostname=_HOST),
            ):
                return
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"a webhook does not start:\n{log.read_text()[-2000:]}")


def _run_load(target: Target) -> Measured:
    """Run the loader on its core. Raises RuntimeError with the end of its log."""
    result = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.https_load"],
        input=json.dumps(asdict(target)),
        capture_output=True,
        text=True,
        timeout=target.seconds + _LOADER_SLACK_S,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"the loader failed at {target.path}:\n{result.stderr[-2000:]}")
    return Measured(**json.loads(result.stdout))


def _last() -> int:
    """The loader's core; with only one core it shares that one, and the figures mean little."""
    return max(os.sched_getaffinity(0))
