"""Admission while webhook pods are deleted: pods are created at a steady rate, with dry run, and failures counted."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bowline.localcluster.api import ApiClient
from bowline.localcluster.errors import LocalApiError
from bowline.testing.builders import pod
from tests.localnode.cluster import NAMESPACE, NodeCluster
from tests.node.steps import NodeLive

_RATE = 30.0
_THREADS = 6
# A webhook's termination grace period is 75 s, of which it uses 30 s.
_REPLACED_S = 180.0
_WEBHOOKS = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app.kubernetes.io/component=webhook"


@dataclass
class Load:
    """The results of the requests. ``failures``: the error of each that failed."""

    admissions: int = 0
    failures: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def count(self, failure: str | None) -> None:
        """Count one request that has ended."""
        with self.lock:
            if failure is None:
                self.admissions += 1
            else:
                self.failures.append(failure)

    @property
    def total(self) -> int:
        """All requests that have ended."""
        return self.admissions + len(self.failures)


@contextmanager
def run_load(node: NodeCluster, namespace: str) -> Iterator[Load]:
    """Create pods until the block ends, each at its time, independently of earlier replies."""
    load = Load()
    stop = threading.Event()
    began = time.monotonic()
    body = {"metadata": {**pod("load", namespace)["metadata"], "annotations": {"gpu-fraction": "0.5"}}}
    body["spec"] = pod("load", namespace)["spec"]
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
    port, pki = int(node.cluster.server.rpartition(":")[2]), node.cluster.layout.pki

    def work(number: int) -> None:
        client = ApiClient(port, pki / "ca.crt", pki / "admin.crt", pki / "admin.key")
        for turn in range(number, 1_000_000, _THREADS):
            if stop.wait(max(0.0, began + turn / _RATE - time.monotonic())):
                break
            try:
                client.post(path, body)
            except (LocalApiError, OSError) as error:
                load.count(str(error))
            else:
                load.count(None)
        client.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(_THREADS)]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def webhooks(live: NodeLive) -> list[dict[str, Any]]:
    """The webhook's pods that are not being deleted."""
    items = live.cluster.api.get(_WEBHOOKS)["items"]
    return [webhook_pod for webhook_pod in items if not webhook_pod["metadata"].get("deletionTimestamp")]


def await_replacement(live: NodeLive, former_names: set[str], count: int) -> None:
    """Wait until so many webhooks are Ready, and none of the deleted ones exists."""

    def is_so() -> bool:
        items = live.cluster.api.get(_WEBHOOKS)["items"]
        ready = [
            webhook_pod
            for webhook_pod in items
            if any(c["type"] == "Ready" and c["status"] == "True" for c in conditions(webhook_pod))
        ]
        return len(items) == len(ready) == count and not former_names & {
            webhook_pod["metadata"]["name"] for webhook_pod in items
        }

    live.until(f"{count} webhooks are Ready", is_so, _REPLACED_S)


def conditions(webhook_pod: dict[str, Any]) -> list[dict[str, Any]]:
    """The pod's conditions."""
    return list(webhook_pod["status"].get("conditions") or ())


def report(description: str, load: Load) -> None:
    """Print the numbers."""
    sys.stdout.write(f"{description}: {len(load.failures)} of {load.total} failed {dict(Counter(load.failures))}\n")


def test_both_webhooks_deleted_together_fail_at_most_one_request_in_200(node: NodeCluster, live: NodeLive) -> None:
    with run_load(node, live.namespace) as load:
        live.until("the load has begun", lambda: load.total > 3 * _RATE)
        names = {webhook_pod["metadata"]["name"] for webhook_pod in webhooks(live)}
        assert len(names) == 2
        node.cluster.kubectl("delete", "pods", *names, f"--namespace={NAMESPACE}", "--wait=false")
        await_replacement(live, names, 2)
        more = load.total + 3 * _RATE
        live.until("the load continues", lambda: load.total > more)
    report("2 webhooks deleted together", load)
    assert len(load.failures) <= load.total * 0.005, Counter(load.failures)


def test_webhooks_evicted_one_after_another_fail_no_request(node: NodeCluster, live: NodeLive) -> None:
    with run_load(node, live.namespace) as load:
        live.until("the load has begun", lambda: load.total > _RATE)
        for name in [webhook_pod["metadata"]["name"] for webhook_pod in webhooks(live)]:
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
            node.cluster.api.post(f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction", body)
            await_replacement(live, {name}, 2)
    report("2 webhooks evicted one after another", load)
    assert load.failures == []
