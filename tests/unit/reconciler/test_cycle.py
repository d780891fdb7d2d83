"""The order of calls and writes of one binding cycle, as far as no real race shows it each time."""

from datetime import timedelta
from typing import Any

import pytest

from bowline.api.bindrequest import BindRequest, decode_bind_request
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Status
from bowline.runtime.workers import DONE, REQUEUE, ReconcileError
from bowline.testing.builders import pod, stored
from bowline_reconciler.drive.driver import DEFER, MAX_DEFERRED
from bowline_reconciler.watch.informers import Listed
from tests.unit.reconciler.cycle import Act, Cycle, bound


def lose_binding(cycle: Cycle) -> None:
    """A Binding without a reply."""
    cycle.state.attempt.writes.lose(cycle.clock.monotonic(), is_binding=True)


NOT_BOUND = ["read pod", "status Pending", "event BindingRetry", "condition BindingRetry"]


async def test_success_writes_the_finalizer_first_and_the_status_last() -> None:
    cycle = Cycle()
    assert await cycle.attempt() == DONE
    assert cycle.log == [
        "add finalizer",
        "pre_bind",
        "bind",
        "post_bind",
        "drop finalizer",
        "status Succeeded",
        "event Bound",
    ]


@pytest.mark.parametrize("took_effect", [True, False])
async def test_a_binding_without_a_reply_is_judged_by_the_pod(took_effect: bool) -> None:
    cycle = Cycle()

    async def lose_reply(_: BindContext) -> Status:
        lose_binding(cycle)
        if took_effect:
            cycle.bind_pod()
        return Status.retry("no reply")

    cycle.plugin.acts["bind"] = lose_reply
    await cycle.attempt()
    bound = ["read pod", "post_bind", "drop finalizer", "status Succeeded", "event Bound"]
    assert cycle.log[3:] == (bound if took_effect else NOT_BOUND)
    assert (cycle.states.get(cycle.key) is None) is took_effect


async def test_an_ok_without_a_binding_is_a_defect_of_the_bind_plugin() -> None:
    async def claim_success(_: BindContext) -> Status:
        return Status.ok()

    cycle = Cycle(bind=claim_success)
    await cycle.attempt()
    assert cycle.log[3:] == ["read pod"], "it waits, and no attempt is counted"


@pytest.mark.parametrize("has_left_the_watch", [True, False])
async def test_nothing_is_read_or_decided_of_a_request_that_has_its_result(has_left_the_watch: bool) -> None:
    """Events of the bind may arrive before the replies; then the key is enqueued, and reconciled after the end."""
    cycle = Cycle()
    await cycle.attempt()
    calls, questions = list(cycle.log), cycle.plugin.questions
    if has_left_the_watch:
        cycle.requests.deliver(cycle.key, None)
    await cycle.reconciler.reconcile(cycle.key)
    assert (cycle.log, cycle.plugin.questions) == (calls, questions)
    assert not cycle.states.items()


@pytest.mark.parametrize("has_left_the_watch", [True, False])
async def test_a_request_withdrawn_in_pre_bind_is_not_bound(has_left_the_watch: bool) -> None:
    cycle = Cycle()

    async def withdraw(_: BindContext) -> Status:
        if has_left_the_watch:
            cycle.events.on_delete(cycle.key)
        else:
            cycle.is_wanted = False
            cycle.events.on_cached(cycle.key)
        return Status.ok()

    cycle.plugin.acts["pre_bind"] = withdraw
    with pytest.raises(ReconcileError, match="withdrawn"):
        await cycle.attempt()
    assert cycle.log == ["add finalizer", "pre_bind"]


@pytest.mark.parametrize("is_of_an_earlier_term", [True, False])
async def test_the_first_attempt_for_a_request_of_an_earlier_term_is_fenced(is_of_an_earlier_term: bool) -> None:
    cycle = Cycle()
    cycle.show(cycle.held())
    cycle.in_flight.start_term(Listed(newest=cycle.request.created if is_of_an_earlier_term else None))
    await cycle.attempt()
    assert cycle.log[:2] == (["add finalizer", "pre_bind"] if is_of_an_earlier_term else ["pre_bind", "bind"])


@pytest.mark.parametrize("is_of_an_earlier_term", [True, False])
async def test_a_withdrawn_request_is_rolled_back_and_leaves_no_nomination(is_of_an_earlier_term: bool) -> None:
    """The writes of a former leader may land first."""
    cycle = Cycle()
    raw = cycle.held().raw
    metadata = {**raw["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    cycle.show(decode_bind_request({**raw, "metadata": metadata}))
    if is_of_an_earlier_term:
        cycle.in_flight.start_term(Listed(cycle.clock.monotonic(), newest=cycle.request.created))
        assert (await cycle.attempt()).requeue_after == timedelta(seconds=60)
        cycle.clock.step(timedelta(seconds=60))
        cycle.log.clear()
    await cycle.attempt()
    assert cycle.log == ["read pod", "rollback", "end the nomination to node-0", "drop finalizer"]


async def fail(_: BindContext) -> Status:
    return Status.retry("not yet")


async def refuse(_: BindContext) -> Status:
    return Status.fatal("no seat")


@pytest.mark.parametrize(
    ("act", "failing_call", "report"),
    [
        pytest.param(fail, "status Pending", "status Pending", id="retry"),
        pytest.param(refuse, "status Failed", "status Failed", id="fatal"),
        pytest.param(refuse, "read pod", "status Failed", id="fatal, before its rollback"),
    ],
)
async def test_a_failure_that_is_not_stored_is_stored_before_another_attempt(
    act: Act, failing_call: str, report: str
) -> None:
    cycle = Cycle(pre_bind=act)
    cycle.denials.add(failing_call)
    with pytest.raises(ReconcileError):
        await cycle.attempt()
    cycle.denials.clear()
    cycle.log.clear()
    cycle.plugin.acts["pre_bind"] = bound
    await cycle.attempt()
    assert report in cycle.log
    assert "pre_bind" not in cycle.log


async def test_what_was_read_before_a_former_request_has_ended_is_not_decided_on() -> None:
    cycle = Cycle()

    async def show_third(_: BindContext) -> Status:
        cycle.show(created_again("third", "30"))
        return Status.ok()

    def created_again(uid: str, version: str) -> BindRequest:
        metadata = {**cycle.request.raw["metadata"], "uid": uid, "resourceVersion": version, "finalizers": []}
        return decode_bind_request({**cycle.request.raw, "metadata": metadata, "status": {}})

    cycle.plugin.acts |= {"pre_bind": fail, "rollback": show_third}
    await cycle.attempt()
    cycle.log.clear()
    cycle.show(created_again("second", "20"))
    assert await cycle.attempt() == REQUEUE
    assert cycle.log == ["read pod", "rollback", "end the nomination to node-0"]
    assert not cycle.states.items()


@pytest.mark.parametrize(
    ("is_busy", "deferred_count", "is_deferred"),
    [
        pytest.param(False, 0, False, id="no other request is ready"),
        pytest.param(True, 0, True, id="another request is ready"),
        pytest.param(True, MAX_DEFERRED - 1, True, id="the last one there is room for"),
        pytest.param(True, MAX_DEFERRED, False, id="too many are deferred already"),
    ],
)
async def test_a_completion_is_deferred_while_others_are_not_bound(
    is_busy: bool, deferred_count: int, is_deferred: bool
) -> None:
    cycle = Cycle()
    cycle.is_busy = is_busy
    cycle.states.deferred_count = deferred_count
    result = await cycle.attempt()
    assert (result is DEFER, cycle.states.sizes["deferredCompletions"], "post_bind" in cycle.log) == (
        is_deferred,
        is_deferred,
        not is_deferred,
    )


@pytest.mark.parametrize(
    ("changes", "first_call"),
    [
        pytest.param({}, "post_bind", id="an irrelevant later write"),
        pytest.param({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, "read pod", id="it is deleted"),
        pytest.param({"status": {"phase": "Failed"}}, "read pod", id="another leader has ended it"),
    ],
)
async def test_a_deferred_completion_is_of_a_pending_request(changes: dict[str, Any], first_call: str) -> None:
    cycle = Cycle()
    cycle.is_busy = True
    await cycle.attempt()
    metadata = {**cycle.request.raw["metadata"], "resourceVersion": "9", **changes.get("metadata", {})}
    cycle.show(decode_bind_request({**cycle.request.raw, **changes, "metadata": metadata}))
    cycle.log.clear()
    await cycle.reconciler.reconcile(cycle.key)
    assert cycle.log[0] == first_call
    assert not cycle.states.deferred_count


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_rollback_with_a_write_that_may_still_take_effect_is_repeated(is_replaced: bool) -> None:
    cycle = Cycle(pre_bind=fail if is_replaced else refuse)

    async def lose_reply(_: BindContext) -> Status:
        lose_binding(cycle)
        return Status.ok()

    cycle.plugin.acts["rollback"] = lose_reply
    if is_replaced:
        await cycle.attempt()
        metadata = {**cycle.request.raw["metadata"], "uid": "second", "resourceVersion": "20", "finalizers": []}
        cycle.show(decode_bind_request({**cycle.request.raw, "metadata": metadata, "status": {}}))
    assert (await cycle.attempt()).requeue_after == timedelta(seconds=60)
    assert cycle.log[-1] == "rollback"
    del cycle.plugin.acts["rollback"]
    cycle.clock.step(timedelta(seconds=60))
    cycle.log.clear()
    await cycle.attempt()
    last = ["end the nomination to node-0"] if is_replaced else ["drop finalizer", "status Failed"]
    assert cycle.log[: 2 + len(last)] == ["read pod", "rollback", *last]


async def test_a_late_binding_that_the_read_of_the_pod_has_missed_may_have_landed() -> None:
    cycle = Cycle()

    async def lose_reply(_: BindContext) -> Status:
        lose_binding(cycle)
        return Status.retry("no reply")

    cycle.plugin.acts["bind"] = lose_reply
    await cycle.attempt()
    metadata = {**cycle.request.raw["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}
    cycle.show(decode_bind_request({**cycle.request.raw, "metadata": metadata}))
    cycle.clock.step(timedelta(seconds=59))
    cycle.read_takes = timedelta(seconds=2)
    assert (await cycle.attempt()).requeue_after == timedelta(seconds=1)
    cycle.bind_pod()
    await cycle.attempt()
    assert "rollback" not in cycle.log


async def test_a_rollback_sees_no_pod_that_has_taken_the_name_of_the_requests_pod() -> None:
    seen: list[Any] = []

    async def record(c: BindContext) -> Status:
        seen.append(c.pod)
        return Status.ok()

    cycle = Cycle(rollback=record)
    cycle.show(cycle.held())
    cycle.pod = dict(stored(pod("train"), uid="successor"))
    await cycle.attempt()
    assert seen == [None]
    assert cycle.log[-4:] == ["rollback", "drop finalizer", "status Failed", "event BindingFailed"]


@pytest.mark.parametrize("is_bound", [True, False])
async def test_calls_that_fail_at_an_end_are_no_failed_attempts(is_bound: bool) -> None:
    cycle = Cycle()
    cycle.denials |= {"add finalizer", "status Failed", "status Succeeded"}
    with pytest.raises(ReconcileError):
        await cycle.attempt()
    if is_bound:
        cycle.bind_pod()
    else:
        cycle.pod = dict(stored(pod("train"), uid="successor"))
    for _ in range(8):
        cycle.clock.step(timedelta(seconds=20))
        with pytest.raises(ReconcileError):
            await cycle.attempt()
    assert "status Pending" not in cycle.log
    assert cycle.request.failed_attempts == 0
    cycle.denials.clear()
    await cycle.attempt()
    assert cycle.log[-2:-1] == ["status Succeeded" if is_bound else "status Failed"]


async def test_a_request_that_another_controller_has_ended_is_not_pending_again() -> None:
    cycle = Cycle()
    cycle.denials |= {"add finalizer", "read pod"}
    with pytest.raises(ReconcileError):
        await cycle.attempt()
    cycle.show(decode_bind_request({**cycle.held().raw, "status": {"phase": "Failed"}}))
    for _ in range(8):
        cycle.clock.step(timedelta(seconds=20))
        with pytest.raises(ReconcileError):
            await cycle.attempt()
    assert not [entry for entry in cycle.log if entry.startswith("status")]
