"""Pending pods are cached small, and restored unchanged."""

import random
import tracemalloc
import uuid
from typing import Any

import pytest

from bowline.api.meta import ObjectKey, key_of, uid_of, version_of
from bowline.testing.builders import pod
from bowline_reconciler.watch.pod_cache import MAX_NAMESPACES, PodCache

# A service account's volume and the tolerations that admission adds, as in every stored pod.
TOKEN = {
    "name": "kube-api-access",
    "projected": {"defaultMode": 420, "sources": [{"serviceAccountToken": {"expirationSeconds": 3607,
        "path": "token"}}, {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt",
        "path": "ca.crt"}]}}, {"downwardAPI": {"items": [{"path": "namespace",
        "fieldRef": {"fieldPath": "metadata.namespace"}}]}}]},
}  # fmt: skip
MESSAGE = "0/1000 nodes are available: 1000 Insufficient nvidia.com/gpu. preemption: 0/1000 nodes are available."


def stored(number: int, namespace: str = "team", variables: int = 12) -> dict[str, Any]:
    """Return a stored pod of about 2 KB; UIDs, names and values are unique."""
    rng = random.Random(number)  # noqa: S311 - repeatable
    made = pod(f"train-{number}", namespace)
    made["metadata"] |= {
        "uid": str(uuid.UUID(int=rng.getrandbits(128))),
        "resourceVersion": str(10_000 + number),
        "labels": {"job": f"train-{number}", "controller-uid": str(uuid.UUID(int=rng.getrandbits(128)))},
    }
    made["spec"]["volumes"] = [TOKEN]
    made["spec"]["containers"][0]["env"] = [
        {"name": f"VARIABLE_{n}", "value": f"{rng.getrandbits(64):x}"} for n in range(variables)
    ]
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": MESSAGE}
    made["status"] = {"phase": "Pending", "conditions": [condition]}
    return made


def test_a_pod_that_waits_for_its_scheduler_costs_less_than_a_kilobyte() -> None:
    cache, count = PodCache(lambda _: False), 300
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(count):
            seen = stored(number)
            cache.put(key_of(seen), seen)
        used = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert used / count < 1024
    assert cache[ObjectKey("team", "train-7")] == stored(7), "restored unchanged"


@pytest.mark.parametrize("named", [True, False])
def test_a_pod_is_restored_as_it_was_stored(named: bool) -> None:
    names, first, second = set[ObjectKey](), stored(1), stored(2)
    cache = PodCache(names.__contains__)
    for seen in (first, second):
        assert cache.put(key_of(seen), seen) is None
    key = key_of(first)
    names.update([key] if named else [])
    assert cache.get(key) == first
    assert (cache.uid(key), cache.version(key)) == (uid_of(first), version_of(first))
    newer = stored(1)
    newer["metadata"]["resourceVersion"] = "20000"
    before = cache.put(key, newer)
    assert before is not None
    assert (uid_of(before), version_of(before)) == (uid_of(first), version_of(first))
    assert cache.get(key) == newer
    names.clear()
    cache.pack(key)
    assert cache.get(key) == newer
    assert cache.drop(key) is not None
    assert list(cache) == [key_of(second)]
    assert key not in cache
    assert cache.get(key) is None


def test_a_pod_too_large_to_keep_is_absent_until_it_is_read_from_the_api_server() -> None:
    names, seen = set[ObjectKey](), stored(1, variables=500)
    cache = PodCache(names.__contains__)
    cache.put(ObjectKey("team", "train-0"), stored(0))
    key = key_of(seen)
    cache.put(key, seen)
    names.add(key)
    assert key in cache
    assert cache.version(key) == version_of(seen)
    assert cache.get(key) is None, "absence proves nothing: a live read follows"
    later_pod = {**seen, "metadata": {**seen["metadata"], "resourceVersion": "99"}}
    cache.offer(later_pod)
    assert cache.get(key) is None, "the watch has delivered another version"
    cache.offer(seen)
    assert cache.get(key) == seen
    newer = {**seen, "metadata": {**seen["metadata"], "resourceVersion": "100"}}
    cache.put(key, newer)
    assert cache.get(key) == newer, "a named pod is cached untrimmed"


def test_a_named_pod_with_large_annotations_is_read_live_each_time() -> None:
    names, large = set[ObjectKey](), stored(1)
    cache = PodCache(names.__contains__)
    large["metadata"]["annotations"] = {"tenant.example/notes": "x" * 250_000}
    key = key_of(large)
    cache.put(key, large)
    names.add(key)
    assert cache.get(key) is None, "compressed, it is small; restored, it is not"
    cache.offer(large)
    assert cache.get(key) is None
    cache.put(key, stored(1))
    assert cache.get(key) == stored(1)
    cache.put(key, large)
    assert cache.get(key) is None, "not the version before"
    assert cache.version(key) == version_of(large)


@pytest.mark.parametrize("named", [True, False])
def test_a_pod_that_is_known_to_be_bound_is_absent_whatever_its_watch_still_shows(named: bool) -> None:
    cache, unbound = PodCache(lambda _: named), stored(1)
    key = key_of(unbound)
    bound = {**unbound, "spec": {**unbound["spec"], "nodeName": "node-0"}}
    cache.offer(bound)
    assert key not in cache, "the watch has not shown it yet"
    cache.put(key, unbound)
    cache.offer(bound)
    assert cache.get(key) is None
    cache.put(key, {**unbound, "metadata": {**unbound["metadata"], "resourceVersion": "10002"}})
    assert cache.get(key) is None, "a late event"
    successor = {**unbound, "metadata": {**unbound["metadata"], "uid": "another"}}
    cache.put(key, successor)
    assert cache.get(key) == successor


def test_dictionaries_are_bounded_and_serve_every_namespace() -> None:
    cache = PodCache(lambda _: False)
    keys = []
    for number in range(3 * MAX_NAMESPACES):
        seen = stored(number, f"team-{number}")
        keys.append(key_of(seen))
        cache.put(keys[-1], seen)
    assert all(cache.get(key) == stored(number, f"team-{number}") for number, key in enumerate(keys))
