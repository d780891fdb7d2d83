"""A reported wait in the audit log: status, an event about pod and request each, pod. A withdrawal costs one."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping

from bowline.testing.builders import pod
from tests.audit import call_of
from tests.live import Live

MISSING = [{"name": "data", "persistentVolumeClaim": {"claimName": "missing"}}]


def writes(pair: Live) -> Counter[str]:
    """The reconciler's executed writes in the namespace, as ``verb resource``, from the audit log."""

    def entries() -> Iterator[str]:
        for line in pair.cluster.audit_lines():
            entry = json.loads(line)
            reference, verb = entry.get("objectRef") or {}, entry["verb"]
            is_ours = (
                entry["user"]["username"].endswith("reconciler") and reference.get("namespace") == pair.namespace
            )
            if is_ours and verb not in ("get", "list", "watch"):
                yield " ".join((*call_of(entry), str(entry["responseStatus"]["code"])))

    return Counter(entries())


def once_written(pair: Live, expected: Mapping[str, int]) -> Counter[str]:
    """The writes, once there are as many as expected of each."""

    def complete() -> Counter[str] | None:
        counts = writes(pair)
        return counts if all(counts[write] >= count for write, count in expected.items()) else None

    return pair.until(f"the log has {expected}", complete)


def nominated(pair: Live) -> str | None:
    node: str | None = pair.pod()["status"].get("nominatedNodeName")
    return node


def test_a_reported_wait_takes_four_writes_and_a_withdrawal_ends_the_nomination(pair: Live) -> None:
    pair.create(pod("pod", volumes=MISSING))
    pair.request_bind()
    pair.event("pod", "BindingWaiting")
    pair.until("the pod is nominated", lambda: nominated(pair) == "gpu-node-0")
    expectation = {"patch bindrequests/status 200": 1, "create events 201": 2, "patch pods/status 200": 1}
    # Events and the nomination are written in the background, by several writers.
    assert once_written(pair, expectation) == expectation
    pair.kubectl("delete", "bindrequest", "pod", "--wait=false")
    pair.until("the nomination ends", lambda: nominated(pair) is None)
    withdrawn = {"patch pods/status 200": 2}
    assert once_written(pair, withdrawn).items() >= withdrawn.items()
