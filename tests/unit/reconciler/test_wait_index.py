"""The wait index, in memory only."""

import pytest

from reconciler.binding.state import Watched
from reconciler.binding.waits import Registration, WaitIndex
from shared.api.meta import ObjectKey, ObjectRef, ObjectUID, ResourceVersion
from shared.kube.resources import CONFIGMAPS, PODS
from shared.kube.store import Store

REQUEST, OTHER = ObjectKey("default", "request"), ObjectKey("default", "other")
DATA = ObjectKey("default", "data")


def ref(version: str = "", kind: str = "ConfigMap", name: str = "data") -> ObjectRef:
    return ObjectRef("v1", kind, ObjectKey("default", name), ObjectUID(""), ResourceVersion(version))


def watching(*versions: str) -> tuple[WaitIndex, Store]:
    """A wait index over one store of ConfigMaps that contains ``data`` in the version given, if any."""
    store = Store()
    for version in versions:
        store.put(DATA, {"metadata": {"namespace": "default", "name": "data", "resourceVersion": version}})
    return WaitIndex({CONFIGMAPS: [store], PODS: []}), store


@pytest.mark.parametrize(
    ("shown", "refs", "expected"),
    [
        pytest.param(["7"], [ref("7")], Registration.WATCHED, id="cached as it was read"),
        pytest.param(["8"], [ref("7")], Registration.STALE, id="changed since the read"),
        pytest.param([], [ref("7")], Registration.STALE, id="deleted since the read, or not cached yet"),
        pytest.param(["8"], [ref()], Registration.STALE, id="created since the read"),
        pytest.param([], [ref()], Registration.NEEDS_POLL, id="absent, as it was: a watch may never show it"),
        pytest.param(["7"], [ref("7"), ref("1", "Secret")], Registration.NEEDS_POLL, id="one of them has no watch"),
        pytest.param(
            ["7"], [ref("7"), ref("1", "Pod", "bound")], Registration.STALE, id="one of them is not in the cache"
        ),
        pytest.param(["7"], [], Registration.NEEDS_POLL, id="for nothing in particular"),
    ],
)
def test_the_allowed_kinds_of_waits(shown: list[str], refs: list[ObjectRef], expected: Registration) -> None:
    index, _ = watching(*shown)
    assert index.register(REQUEST, refs, {}) is expected
    assert len(index) == (expected is not Registration.STALE)


def test_a_lagging_watch_costs_one_pass() -> None:
    index, _ = watching("7")
    registered: dict[Watched, ResourceVersion] = {}
    assert index.register(REQUEST, [ref("9")], registered) is Registration.STALE
    assert index.register(REQUEST, [ref("9")], registered) is Registration.WATCHED


def test_a_wait_without_a_version_is_registered_and_woken_by_the_next_event() -> None:
    index, store = watching("7")
    registered: dict[Watched, ResourceVersion] = {}
    assert index.register(REQUEST, [ref()], registered) is Registration.STALE
    assert index.register(REQUEST, [ref()], registered) is Registration.WATCHED
    store.put(DATA, {"metadata": {"namespace": "default", "name": "data", "resourceVersion": "8"}})
    assert index.register(REQUEST, [ref()], registered) is Registration.STALE


def test_exactly_the_waits_for_an_object_are_found() -> None:
    index, _ = watching("7")
    for request in (REQUEST, OTHER):
        index.register(request, [ref("7")], {})
    assert set(index.waiters_of(CONFIGMAPS, DATA)) == {REQUEST, OTHER}
    assert not index.waiters_of(PODS, DATA), "another resource of that name"
    assert not index.waiters_of(CONFIGMAPS, ObjectKey("default", "else"))
    index.unregister(REQUEST)
    assert set(index.waiters_of(CONFIGMAPS, DATA)) == {OTHER}


def test_unregistered_waits_leave_nothing() -> None:
    index, _ = watching("7")
    for number in range(100):
        key = ObjectKey("default", f"request-{number}")
        index.register(key, [ref("7"), ref("", "ConfigMap", f"own-{number}")], {})
        index.unregister(key)
        index.unregister(key)
    assert (len(index), index.watched) == (0, 0)


def test_a_new_wait_replaces_the_former_one() -> None:
    index, _ = watching("7")
    index.register(REQUEST, [ref("7")], {})
    index.register(REQUEST, [ref("", "ConfigMap", "else")], {})
    assert not index.waiters_of(CONFIGMAPS, DATA)
    assert (len(index), index.watched) == (1, 1)
