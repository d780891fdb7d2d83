"""The wait index, in memory alone."""

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
    """Sleepers over one store of ConfigMaps that holds ``data`` in the version given, if one is."""
    store = Store()
    for version in versions:
        store.put(DATA, {"metadata": {"namespace": "default", "name": "data", "resourceVersion": version}})
    return WaitIndex({CONFIGMAPS: [store], PODS: []}), store


@pytest.mark.parametrize(
    ("shown", "refs", "expected"),
    [
        pytest.param(["7"], [ref("7")], Registration.WATCHED, id="shown as it was looked at"),
        pytest.param(["8"], [ref("7")], Registration.STALE, id="changed since the look"),
        pytest.param([], [ref("7")], Registration.STALE, id="gone since the look, or not shown yet"),
        pytest.param(["8"], [ref()], Registration.STALE, id="come into being since the look"),
        pytest.param([], [ref()], Registration.NEEDS_POLL, id="absent, as it was: a watch may never show it"),
        pytest.param(["7"], [ref("7"), ref("1", "Secret")], Registration.NEEDS_POLL, id="one of them has no watch"),
        pytest.param(["7"], [ref("7"), ref("1", "Pod", "bound")], Registration.STALE, id="one of them is not shown"),
        pytest.param(["7"], [], Registration.NEEDS_POLL, id="for nothing in particular"),
    ],
)
def test_the_allowed_kinds_of_waits(shown: list[str], refs: list[ObjectRef], expected: Registration) -> None:
    sleepers, _ = watching(*shown)
    assert sleepers.register(REQUEST, refs, {}) is expected
    assert len(sleepers) == (expected is not Registration.STALE)


def test_a_lagging_watch_costs_one_pass() -> None:
    sleepers, _ = watching("7")
    slept_on: dict[Watched, ResourceVersion] = {}
    assert sleepers.register(REQUEST, [ref("9")], slept_on) is Registration.STALE
    assert sleepers.register(REQUEST, [ref("9")], slept_on) is Registration.WATCHED


def test_a_plugin_that_names_no_version_sleeps_all_the_same_and_wakes_for_the_next() -> None:
    sleepers, store = watching("7")
    slept_on: dict[Watched, ResourceVersion] = {}
    assert sleepers.register(REQUEST, [ref()], slept_on) is Registration.STALE
    assert sleepers.register(REQUEST, [ref()], slept_on) is Registration.WATCHED
    store.put(DATA, {"metadata": {"namespace": "default", "name": "data", "resourceVersion": "8"}})
    assert sleepers.register(REQUEST, [ref()], slept_on) is Registration.STALE


def test_exactly_the_waits_for_an_object_are_found() -> None:
    sleepers, _ = watching("7")
    for request in (REQUEST, OTHER):
        sleepers.register(request, [ref("7")], {})
    assert set(sleepers.waiters_of(CONFIGMAPS, DATA)) == {REQUEST, OTHER}
    assert not sleepers.waiters_of(PODS, DATA), "another resource of that name"
    assert not sleepers.waiters_of(CONFIGMAPS, ObjectKey("default", "else"))
    sleepers.unregister(REQUEST)
    assert set(sleepers.waiters_of(CONFIGMAPS, DATA)) == {OTHER}


def test_who_is_awake_leaves_nothing() -> None:
    sleepers, _ = watching("7")
    for number in range(100):
        key = ObjectKey("default", f"request-{number}")
        sleepers.register(key, [ref("7"), ref("", "ConfigMap", f"own-{number}")], {})
        sleepers.unregister(key)
        sleepers.unregister(key)
    assert (len(sleepers), sleepers.watched) == (0, 0)


def test_who_falls_asleep_on_something_else_no_longer_waits_for_the_first() -> None:
    sleepers, _ = watching("7")
    sleepers.register(REQUEST, [ref("7")], {})
    sleepers.register(REQUEST, [ref("", "ConfigMap", "else")], {})
    assert not sleepers.waiters_of(CONFIGMAPS, DATA)
    assert (len(sleepers), sleepers.watched) == (1, 1)
