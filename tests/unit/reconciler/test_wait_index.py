"""The wait index, in memory only."""

import pytest

from bowline.api.meta import Object, ObjectID, ObjectKey, ObjectRef, ObjectUID, ResourceVersion
from bowline.kube.resources import CONFIGMAPS, PODS
from bowline.kube.store import Store
from bowline_reconciler.drive.requeue import Registration, WaitIndex, WaitSource

REQUEST, OTHER = ObjectKey("default", "request"), ObjectKey("default", "other")
DATA = ObjectKey("default", "data")


def ref(version: str = "", kind: str = "ConfigMap", name: str = "data") -> ObjectRef:
    return ObjectRef("v1", kind, ObjectKey("default", name), ObjectUID(""), ResourceVersion(version))


def watching(*versions: str) -> tuple[WaitIndex, Store]:
    """A wait index over one store of ConfigMaps that contains ``data`` in the version given, if any."""
    store = Store()
    for version in versions:
        put(store, version)
    return WaitIndex({CONFIGMAPS: [WaitSource(store)], PODS: []}), store


@pytest.mark.parametrize(
    ("versions", "refs", "expectation"),
    [
        pytest.param(["7"], [ref("7")], Registration.WATCHED, id="cached as it was read"),
        pytest.param(["8"], [ref("7")], Registration.STALE, id="changed since the read"),
        pytest.param(["7"], [ref("10")], Registration.WATCHED, id="the watch lags behind the read"),
        pytest.param([], [ref("7")], Registration.STALE, id="deleted since the read, or not cached yet"),
        pytest.param(["8"], [ref()], Registration.STALE, id="created since the read"),
        pytest.param([], [ref()], Registration.NEEDS_POLL, id="absent, as it was: a watch may never show it"),
        pytest.param(["7"], [ref("7"), ref("1", "Secret")], Registration.NEEDS_POLL, id="one of them has no watch"),
        pytest.param(["7"], [ref("7"), ref("1", "Pod", "bound")], Registration.STALE,
            id="one of them is not in the cache"),
        pytest.param(["7"], [], Registration.NEEDS_POLL, id="for nothing in particular"),
    ],
)  # fmt: skip
def test_the_allowed_kinds_of_waits(versions: list[str], refs: list[ObjectRef], expectation: Registration) -> None:
    index, _ = watching(*versions)
    assert index.register(REQUEST, refs, {}) is expectation
    assert index.count("default") == (expectation is not Registration.STALE)


def put(store: Store, version: str) -> None:
    store.put(DATA, {"metadata": {"namespace": "default", "name": "data", "resourceVersion": version}})


def test_versions_without_an_order_are_compared_for_equality() -> None:
    index, _ = watching("a")
    last_versions: dict[ObjectID, ResourceVersion] = {}
    assert index.register(REQUEST, [ref("b")], last_versions) is Registration.STALE
    assert index.register(REQUEST, [ref("b")], last_versions) is Registration.WATCHED


def test_a_state_that_cannot_end_a_wait_does_not() -> None:
    store = Store()
    hinted: list[tuple[ObjectKey, str]] = []

    def may_end_wait(request: ObjectKey, seen: Object) -> bool:
        hinted.append((request, seen["metadata"]["resourceVersion"]))
        return request == OTHER

    index = WaitIndex({CONFIGMAPS: [WaitSource(store, may_end_wait)]})
    put(store, "8")
    assert index.register(REQUEST, [ref("7")], {}) is Registration.WATCHED, "changed between read and registration"
    assert index.register(OTHER, [ref("7")], {}) is Registration.STALE
    assert index.register(OTHER, [ref("8")], {}) is Registration.WATCHED
    put(store, "9")
    assert index.waiters_of(CONFIGMAPS, DATA) == [OTHER]
    store.drop(DATA)
    assert set(index.waiters_of(CONFIGMAPS, DATA)) == {REQUEST, OTHER}, "a deletion may always end a wait"
    assert hinted[:2] == [(REQUEST, "8"), (OTHER, "8")]
    assert sorted(hinted[2:]) == [(OTHER, "9"), (REQUEST, "9")]


def test_a_wait_ends_if_one_of_the_watches_that_show_the_object_allows_it() -> None:
    stores = [Store(), Store()]
    index = WaitIndex({CONFIGMAPS: [WaitSource(stores[0], lambda *_: False), WaitSource(stores[1], lambda *_: True)]})
    put(stores[0], "7")
    put(stores[1], "7")
    assert index.register(REQUEST, [ref("7")], {}) is Registration.WATCHED
    put(stores[0], "8")
    assert not index.waiters_of(CONFIGMAPS, DATA)
    put(stores[1], "8")
    assert index.waiters_of(CONFIGMAPS, DATA) == [REQUEST]
    assert index.register(OTHER, [ref("7")], {}) is Registration.STALE


def test_nothing_is_left_of_a_wait_that_has_ended() -> None:
    index, _ = watching("7")
    index.register(REQUEST, [ref("7")], {})
    index.unregister(REQUEST, [("v1", "ConfigMap", DATA)])
    assert not index.waiters_of(CONFIGMAPS, DATA)
    assert not index.count("default")
