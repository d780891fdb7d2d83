"""What is newer than the cache: explored for each order of writes, reads and events up to a bound."""

import itertools
from collections import defaultdict
from typing import Any

import pytest

from bowline.api.bindrequest import BindRequest, decode_bind_request
from bowline.api.meta import ObjectKey, ResourceVersion
from bowline_reconciler.binding.overlay import CacheOverlay
from bowline_reconciler.binding.state import IdentifiedRequest, RequestStates

# Each explores a whole space.
pytestmark = pytest.mark.timeout(300)

KEY = ObjectKey("ns", "p")


class Violations:
    """What does not hold, with examples."""

    def __init__(self) -> None:
        self.examples: dict[str, list[str]] = defaultdict(list)

    def hold(self, name: str, condition: bool, *example: Any) -> None:
        """Record an example unless the condition holds."""
        if not condition and len(self.examples[name]) < 4:
            self.examples[name].append(str(example)[:500])


@pytest.fixture
def violations() -> Violations:
    return Violations()


def request(**metadata: str) -> BindRequest:
    identity = {"namespace": "ns", "name": "p", "uid": "R", "resourceVersion": "1", "generation": 1}
    spec = {"podName": "p", "podUID": "P", "selectedNode": "n"}
    return decode_bind_request({"metadata": {**identity, **metadata}, "spec": spec})


def test_nothing_older_than_an_own_write_is_decided_on_whatever_the_watch_delivers(violations: Violations) -> None:
    steps = ("own write", "foreign write", "deliver", "deliver all", "read live", "look")
    versions = {number: request(resourceVersion=str(number)) for number in range(20)}
    for series in itertools.product(steps, repeat=6):
        overlay, stored_version, cached_version, newest = CacheOverlay(), 0, 0, 0
        for number, step in enumerate(series):
            latest = overlay.latest(versions[cached_version])
            assert latest is not None
            base = int(latest.resource_version)
            if step == "own write" and base == stored_version:
                stored_version += 1
                overlay.replace(versions[base], versions[stored_version])
                newest = stored_version
            elif step == "own write":
                overlay.invalidate()  # a Conflict
            elif step == "foreign write":
                stored_version += 1
            elif step == "deliver":
                cached_version = min(stored_version, cached_version + 1)
            elif step == "deliver all":
                cached_version = stored_version
            elif step == "read live":
                overlay.observe(versions[cached_version])
                overlay.confirm()
                overlay.replace(versions[cached_version], versions[stored_version])
                newest = stored_version
            else:
                overlay.observe(versions[cached_version])
                latest = overlay.latest(versions[cached_version])
                assert latest is not None
                is_current = int(latest.resource_version) >= newest or overlay.needs_live_read
                violations.hold("it is current, or read live next", is_current, series[: number + 1])
    assert violations.examples == {}


class Name:
    """A name whose request is made again twice: the API server, a watch, and what the process does with both."""

    history = tuple(
        request(uid=uid, resourceVersion=str(number)) if uid else None
        for number, uid in enumerate(["A", "", "B", "", "C", ""])
    )

    def __init__(self) -> None:
        self.states = RequestStates()
        self.stored = self.shown = 0
        self.observed: set[str] = set()
        self.past: set[str] = set()  # ended by this process, or known to be deleted or replaced

    def identify(self) -> tuple[IdentifiedRequest, BindRequest | None]:
        """Which request the key is; and which one an attempt would be for."""
        identity = self.states.identify(KEY, self.history[self.shown])
        self.observed |= {identity.cached.uid} if identity.cached is not None else set()
        is_finished = identity.state is not None and identity.state.is_finished
        return identity, None if is_finished else identity.latest

    def delete(self) -> None:
        self.stored = min(len(self.history) - 1, self.stored + 1)

    def replace(self) -> None:
        self.delete()
        if self.history[self.stored] is None:
            self.delete()

    def deliver(self) -> None:
        if self.shown < self.stored:
            self.shown += 1
            self._leave()

    def list(self) -> None:
        self.shown = self.stored
        self._leave()

    def read(self) -> None:
        identity, _ = self.identify()
        if identity.state is not None and identity.state.is_finished:
            return
        answer = self.history[self.stored]
        if answer is None:
            self.past |= self.observed  # not one that was made and deleted before the read, which has no version
            self.states.end(identity)
            self._leave()
        else:
            self.past |= set("ABC"[: self.stored // 2])
            self.observed.add(answer.uid)
            self.states.observe(answer, identity.cached, is_live=True)

    def finish(self) -> None:
        identity, attempted = self.identify()
        if attempted is not None:
            self.past.add(attempted.uid)
            self.states.observe(attempted, identity.cached, is_live=False).finish(attempted.resource_version)

    def _leave(self) -> None:
        if self.history[self.shown] is None:
            self.states.leave(KEY, ResourceVersion(str(self.shown)))


def test_nothing_known_to_be_past_is_attempted_whatever_the_watch_shows(violations: Violations) -> None:
    steps = (Name.delete, Name.replace, Name.deliver, Name.list, Name.read, Name.finish)
    for series in itertools.chain(*(itertools.product(steps, repeat=length) for length in range(1, 7))):
        name = Name()
        for step in series:
            step(name)
        _, attempted = name.identify()
        label = [step.__name__ for step in series]
        violations.hold("it is not past", attempted is None or attempted.uid not in name.past, label, name.past)
        if name.history[name.stored] is None:
            name.list()
            name.read()
            violations.hold("nothing is remembered", not len(name.states), label)
    assert violations.examples == {}
