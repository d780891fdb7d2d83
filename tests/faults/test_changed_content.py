"""Every call succeeds, and its content does not.

A policy changes a field of a write before it is stored, or another client deletes an object, or takes a field of it
back, while the prepared request waits. The writes and their fields are those of the undisturbed run. A request that
reports Succeeded with Prepared=True has the undisturbed run's objects, as an independent reading shows them; of one
that is rolled back, or withdrawn, nothing is left.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest

from bowline.localcluster.errors import LocalApiError
from bowline.testing.fault_proxy.calls import ProxiedCall
from bowline.testing.fault_proxy.faults import FieldPath, Rewrite, field_paths
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from tests.faults.endstate import RESERVATIONS, State, differences, left_of, state_of
from tests.faults.lab import Lab, Reconciler
from tests.faults.matrix import is_leading
from tests.faults.plugin_scenarios import DEVICE, FRACTION, VOLUME, ask_for_share, post_share, share_body
from tests.faults.plugins.fault_effects import EFFECT, GATE
from tests.faults.scenarios import Scenario, make_gate, make_pod, make_request, remove
from tests.live import LiveCluster

_WAITS = {EFFECT: "yes", GATE: "gate"}
# What is compared: everything but the request itself, whose attempts and reasons differ.
_COMPARED = ("pods", "maps", "claims", "volumeClaims", "volumes", "reservations")
# Reports, which a later one repeats, and what no object of a pod is.
_REPORTS = ("bindrequests", "events", "leases", "selfsubjectaccessreviews", "subjectaccessreviews", "secrets")


def make_effect(live: LiveCluster) -> None:
    """Create a pod for which a plugin creates an object, and whose request waits for its gate."""
    make_request(live, make_pod(live, tolerations=[]), _WAITS)


def make_share(live: LiveCluster) -> None:
    """The same with half a GPU."""
    ask_for_share(live, post_share(live, share_body(live, tolerations=[])), "a", annotations=_WAITS)


@dataclass(frozen=True, slots=True)
class Write:
    """A write of the undisturbed run. ``path``: of one field in its body."""

    call: ProxiedCall
    path: FieldPath

    def __str__(self) -> str:
        return f"{self.call.kind} {'.'.join(map(str, self.path))}"

    def match(self, live: LiveCluster) -> CallMatch:
        """The same writes in another run."""
        namespace = self.call.namespace if self.call.namespace in ("", RESERVATIONS) else live.namespace
        return CallMatch((self.call.verb,), self.call.resource, self.call.subresource, namespace)


@dataclass(slots=True)
class Recorder:
    """Records the bodies of one run's writes."""

    call: ProxiedCall | None = None
    writes: list[tuple[ProxiedCall, Any]] = field(default_factory=list)

    def arrived(self, call: ProxiedCall) -> None:
        """Remember whose body follows."""
        self.call = call

    def body(self, body: Any) -> None:
        """Record a body, unchanged."""
        if self.call is not None and self.call.resource not in _REPORTS:
            self.writes.append((self.call, deepcopy(body)))


@contextmanager
def recorded(reconciler: Reconciler, live: LiveCluster) -> Iterator[Recorder]:
    """Record the writes to the run's objects in the block."""
    recorder = Recorder()
    for namespace in (live.namespace, RESERVATIONS):
        match = CallMatch(("create", "update", "patch"), namespace=namespace)
        reconciler.proxy.inspect(match, recorder.arrived)
        reconciler.proxy.add(FaultRule(Rewrite(recorder.body), match))
    volumes = CallMatch(("update", "patch"), "persistentvolumes")
    reconciler.proxy.inspect(volumes, recorder.arrived)
    reconciler.proxy.add(FaultRule(Rewrite(recorder.body), volumes))
    try:
        yield recorder
    finally:
        reconciler.proxy.clear()


def fields_of(recorder: Recorder) -> list[Write]:
    """Return each field of each kind of write once: to a depth of three, below which a part stands for the whole."""
    writes: dict[Write, None] = {}
    for call, body in recorder.writes:
        kind = ProxiedCall(call.verb, call.group, call.resource, call.subresource, call.namespace)
        for path in field_paths(body, 3):
            is_report = (call.resource, call.subresource) == ("pods", "status") and "conditions" in path
            if not is_report:
                writes[Write(kind, path)] = None
    return list(writes)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("scenario", [FRACTION, DEVICE, VOLUME], ids=lambda scenario: scenario.name)
def test_a_write_of_which_a_field_is_not_stored(lab: Lab, scenario: Scenario) -> None:
    with lab.reconciler("changed") as reconciler:
        live = _namespace(lab, reconciler, scenario.name)
        with recorded(reconciler, live) as recorder:
            scenario.play(live)
            live.until("the undisturbed run has ended", lambda: scenario.ended(live))
        expected = state_of(live)
        writes = fields_of(recorder)
        assert len(writes) > 3
        for write in writes:
            _with_changed_write(lab, reconciler, scenario, write, expected)


def _with_changed_write(lab: Lab, reconciler: Reconciler, scenario: Scenario, write: Write, expected: State) -> None:
    live = _namespace(lab, reconciler, scenario.name)
    reconciler.proxy.add(FaultRule(Rewrite.without(write.path), write.match(live)))
    try:
        scenario.play(live)
        live.until(f"{write} is reported", lambda: _has_ended(live) or _reason(live))
        _check(live, expected, str(write))
        remove(live, live.request_path())
        live.until(
            f"nothing is left after {write}", lambda: live.not_found(live.request_path()) and not left_of(live)
        )
    finally:
        reconciler.proxy.clear()
    reconciler.check()


def test_what_was_stored_is_deleted_while_a_share_waits(lab: Lab) -> None:
    _disturb(lab, make_share, lambda change: not change.path)


@pytest.mark.faults
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("make", [make_effect, make_share])
def test_every_field_that_was_stored_is_removed_while_the_request_waits(
    lab: Lab, make: Callable[[LiveCluster], None]
) -> None:
    _disturb(lab, make, lambda change: True)


def _disturb(lab: Lab, make: Callable[[LiveCluster], None], selects: Callable[["Change"], bool]) -> None:
    """Run once undisturbed, then once for each selected change, made once an attempt has ended with the wait."""
    with lab.reconciler("changed") as reconciler:
        live, recorder = _waiting(lab, reconciler, make)
        make_gate(live)
        live.phase("pod", "Succeeded")
        expected = state_of(live)
        changes = [change for change in _changes(recorder) if selects(change)]
        assert changes
        for change in changes:
            live, current = _waiting(lab, reconciler, make)
            change.apply(live, current)
            make_gate(live)
            live.until(f"it ends after {change}", lambda live=live: _has_ended(live))  # type: ignore[misc]
            _check(live, expected, str(change))


def _waiting(lab: Lab, reconciler: Reconciler, make: Callable[[LiveCluster], None]) -> tuple[LiveCluster, Recorder]:
    """Prepare a pod whose request waits for its gate, and reports that."""
    live = _namespace(lab, reconciler, "waiting")
    with recorded(reconciler, live) as recorder:
        make(live)
        live.until("the wait is reported", lambda: "the gate is not there" in _reason(live))
    return live, recorder


@dataclass(frozen=True, slots=True)
class Change:
    """What another client does to the nth object that the run has written. ``path``: the field it removes."""

    nth: int
    path: FieldPath = ()

    def __str__(self) -> str:
        return f"object {self.nth} {'.'.join(map(str, self.path)) or 'deleted'}"

    def apply(self, live: LiveCluster, recorder: Recorder) -> None:
        """Do it, as an administrator."""
        path = _objects(recorder)[self.nth]
        api = live.cluster.api
        if not self.path:
            api.request("DELETE", path, {"gracePeriodSeconds": 0})
            return
        patch: Any = None
        for key in reversed(self.path):
            patch = {key: patch}
        try:
            api.patch(path, patch)
        except LocalApiError as error:
            # 422: the API server itself keeps the field.
            if error.status != 422:
                raise


def _objects(recorder: Recorder) -> list[str]:
    """Return the paths of the written objects, each once, in the order of the first write."""
    paths: dict[str, None] = {}
    for call, _ in recorder.writes:
        prefix = f"/apis/{call.group}/v1" if call.group else "/api/v1"
        where = f"/namespaces/{call.namespace}" if call.namespace else ""
        if call.name and not call.name.endswith("-"):
            paths[f"{prefix}{where}/{call.resource}/{call.name}"] = None
    return list(paths)


def _changes(recorder: Recorder) -> list[Change]:
    paths = _objects(recorder)
    changes = [Change(nth) for nth, path in enumerate(paths) if not path.endswith("/pods/pod")]
    for call, body in recorder.writes:
        if not call.name or call.name.endswith("-") or call.subresource:
            continue
        nth = next(nth for nth, path in enumerate(paths) if path.endswith(f"/{call.resource}/{call.name}"))
        for path in field_paths(body, 3):
            if path[:1] == ("metadata",) and path[1] in ("labels", "annotations", "ownerReferences"):
                changes.append(Change(nth, path))
    return list(dict.fromkeys(changes))


def _namespace(lab: Lab, reconciler: Reconciler, word: str) -> LiveCluster:
    live = lab.namespace(f"changed-{word}")
    live.until("it leads", lambda: is_leading(reconciler))
    return live


def _has_ended(live: LiveCluster) -> bool:
    request = live.request()
    ended = (request.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return ended and not request["metadata"].get("finalizers")


def _reason(live: LiveCluster) -> str:
    return str((live.request().get("status") or {}).get("reason") or "")


def _check(live: LiveCluster, expected: State, what: str) -> None:
    """Compare what the request reports with what is stored."""
    status = live.request().get("status") or {}
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or ()}
    if status.get("phase") == "Succeeded" and conditions.get("Prepared") == "True":
        read = state_of(live)
        compared = {kind: expected[kind] for kind in _COMPARED}
        assert compared == {kind: read[kind] for kind in _COMPARED}, f"{what}: {differences(compared, read)}"
    if status.get("phase") == "Failed" and conditions.get("RolledBack") == "True":
        assert left_of(live) == [], f"{what}: {left_of(live)} in spite of RolledBack=True"
