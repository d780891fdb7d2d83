"""The order of calls and writes of one binding cycle, with recording doubles of writer, client and caches."""

from datetime import timedelta

import pytest

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import ResourceVersion
from bowline.framework.binding.context import BindContext
from bowline.framework.plugin_status import Status
from bowline.framework.reason import Reason
from bowline.kube.errors import ServerError
from bowline.runtime.workers import DONE, ReconcileError
from bowline_reconciler.binding.complete import ROLLBACK_PAUSE
from bowline_reconciler.decide.actions import Fail
from bowline_reconciler.decide.transient import REPORT_AFTER_S
from tests.unit.reconciler.cycle import Caches, Cycle, Live, Recorded, RecordingWriter

REJECTED = Fail(Reason.REJECTED, "no")


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
    assert cycle.state.is_finished


@pytest.mark.parametrize("list_version", [0, 10])
@pytest.mark.parametrize("is_cached", [True, False])
async def test_a_finished_request_is_forgotten_by_a_list_that_no_event_of_it_follows(
    monkeypatch: pytest.MonkeyPatch, list_version: int, is_cached: bool
) -> None:
    cycle = Cycle()
    await cycle.attempt()
    if not is_cached:
        monkeypatch.setattr(Caches, "request", lambda *_: None)
    cycle.events.on_list(ResourceVersion(str(list_version)))
    assert len(cycle.states) == (0 if list_version and not is_cached else 1)


async def test_a_plugin_has_one_view_of_an_attempt_and_one_of_the_bound_pod() -> None:
    cycle = Cycle()
    await cycle.attempt()
    before, at_bind, after = cycle.plugin.contexts
    assert at_bind is before
    assert (after.pod or {})["spec"]["nodeName"] == cycle.request.selected_node
    assert (after.annotations, after.cancelled, after.posts) == (before.annotations, before.cancelled, before.posts)
    assert after.state is before.state


async def test_a_terminal_failure_is_reported_after_rollback_and_release() -> None:
    cycle = Cycle()
    snapshot = cycle.reads.from_cache(cycle.held(), cycle.state)
    assert await cycle.completer.fail(snapshot, cycle.state, REJECTED) == DONE
    assert cycle.log == [
        "read pod",
        "rollback",
        "drop finalizer",
        "status Failed",
        "event BindingFailed",
        "condition Rejected",
    ]


@pytest.mark.parametrize("failing_write", ["drop_finalizer", "patch_status"])
async def test_a_terminal_failure_that_has_begun_is_finished_whatever_call_fails(failing_write: str) -> None:
    cycle = Cycle()
    snapshot = cycle.reads.from_cache(cycle.held(), cycle.state)
    writer = cycle.completer.writer
    working_write = getattr(writer, failing_write)

    async def fail_once(*arguments: object) -> None:
        setattr(writer, failing_write, working_write)
        raise ServerError("no connection to etcd")

    setattr(writer, failing_write, fail_once)
    with pytest.raises(ServerError):
        await cycle.completer.fail(snapshot, cycle.state, REJECTED)
    # The next reconcile finds a pod and a node with which an attempt would be made.
    assert await cycle.attempt() == DONE
    assert "pre_bind" not in cycle.log
    assert cycle.log[-3:] == ["status Failed", "event BindingFailed", "condition Rejected"]


async def test_a_pod_bound_during_a_rollback_is_not_reported_as_prepared() -> None:
    """A rollback that is not complete has undone a part of what an attempt had prepared."""

    async def refuse(_: BindContext) -> Status:
        cycle.bind_pod()
        return Status.retry("busy")

    cycle = Cycle(rollback=refuse)
    snapshot = cycle.reads.from_cache(cycle.held(), cycle.state)
    with pytest.raises(ReconcileError):
        await cycle.completer.fail(snapshot, cycle.state, REJECTED)
    assert await cycle.completer.fail(snapshot, cycle.state, REJECTED) == DONE
    status = cycle.statuses[-1]
    assert status["phase"] == "Succeeded"
    assert {c["type"]: c["status"] for c in status["conditions"]}["Prepared"] == "Unknown"


async def test_a_failing_rollback_keeps_the_finalizer_and_the_phase() -> None:
    async def refuse(_: BindContext) -> Status:
        return Status.retry("busy")

    cycle = Cycle(rollback=refuse)
    snapshot = cycle.reads.from_cache(cycle.held(), cycle.state)
    with pytest.raises(ReconcileError) as failure:
        await cycle.completer.fail(snapshot, cycle.state, REJECTED)
    assert failure.value.at_least == ROLLBACK_PAUSE
    assert cycle.log == ["read pod", "rollback", "status Pending", "event RollbackFailed"]
    assert not cycle.state.is_finished


async def test_a_pod_found_bound_turns_a_failure_into_a_success() -> None:
    cycle = Cycle()
    snapshot = cycle.reads.from_cache(cycle.held(), cycle.state)
    cycle.bind_pod()
    assert await cycle.completer.fail(snapshot, cycle.state, REJECTED) == DONE
    assert "rollback" not in cycle.log
    assert "status Succeeded" in cycle.log


async def test_nothing_is_rolled_back_while_a_binding_may_take_effect() -> None:
    cycle = Cycle()
    cycle.state.attempt.end_bind(cycle.clock.monotonic())
    cycle.clock.step(timedelta(seconds=20))
    snapshot = cycle.reads.from_cache(cycle.held(), cycle.state)
    result = await cycle.completer.fail(snapshot, cycle.state, REJECTED)
    assert result.requeue_after == timedelta(seconds=40)
    assert "may still take effect" in result.pending
    assert cycle.log == ["read pod"], "not rolled back"


async def test_a_lost_reply_of_a_binding_that_took_effect_is_a_success() -> None:
    cycle = Cycle()

    async def lost(c: BindContext) -> Status:
        c.posts.last_unknown = cycle.clock.monotonic()
        cycle.bind_pod()
        return Status.retry("no reply")

    cycle.plugin.acts["bind"] = lost
    await cycle.attempt()
    assert cycle.log[3:] == ["read pod", "post_bind", "drop finalizer", "status Succeeded", "event Bound"]


async def test_a_bind_that_a_later_reconcile_finds_is_compared_with_the_binding_that_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lost(c: BindContext) -> Status:
        c.posts.last_unknown = cycle.clock.monotonic()
        cycle.bind_pod()
        return Status.retry("no reply")

    async def fail(*_: object) -> None:
        raise ServerError("no connection to etcd")

    monkeypatch.setattr(Recorded, "binding_annotations", lambda *_: {"example.com/device": "0"})
    cycle = Cycle(bind=lost)
    with monkeypatch.context() as patch:
        patch.setattr(Live, "get", fail)
        with pytest.raises(ReconcileError):
            await cycle.attempt()
    assert await cycle.attempt() == DONE
    (message,) = (c["message"] for c in cycle.statuses[-1]["conditions"] if c["type"] == "Prepared")
    assert "annotation example.com/device" in message


async def test_a_lost_reply_of_a_binding_without_effect_is_a_retry() -> None:
    cycle = Cycle()

    async def lost(c: BindContext) -> Status:
        c.posts.last_unknown = cycle.clock.monotonic()
        return Status.retry("no reply")

    cycle.plugin.acts["bind"] = lost
    result = await cycle.attempt()
    assert result.requeue_after is not None
    assert cycle.log[3:] == ["read pod", "status Pending", "event BindingRetry", "condition BindingRetry"]
    assert cycle.state.attempt.unacknowledged_at is not None


async def test_an_ok_without_a_binding_is_not_a_success() -> None:
    async def claim(_: BindContext) -> Status:
        return Status.ok()

    cycle = Cycle(bind=claim)
    await cycle.attempt()
    assert cycle.log[3:] == ["read pod", "status Pending", "event BindingRetry", "condition BindingRetry"]


async def test_a_request_withdrawn_in_pre_bind_is_not_bound() -> None:
    cycle = Cycle()

    async def withdraw(_: BindContext) -> Status:
        cycle.is_wanted = False
        cycle.events.on_cached(cycle.request.key)
        return Status.ok()

    cycle.plugin.acts["pre_bind"] = withdraw
    with pytest.raises(ReconcileError, match="withdrawn"):
        await cycle.attempt()
    assert cycle.log == ["add finalizer", "pre_bind"]
    assert cycle.state.overlay.needs_live_read


async def test_a_request_withdrawn_during_a_live_read_is_not_attempted() -> None:
    cycle = Cycle()
    cycle.is_cached = cycle.is_wanted = False
    with pytest.raises(ReconcileError, match="withdrawn"):
        await cycle.attempt()
    assert cycle.log == ["read pod"]


async def test_a_cancelled_attempt_ends_its_pre_bind_and_sends_no_binding() -> None:
    cycle = Cycle()

    async def cancel(c: BindContext) -> Status:
        c.cancelled.set()
        await cycle.never.wait()
        return Status.ok()

    cycle.plugin.acts["pre_bind"] = cancel
    with pytest.raises(ReconcileError, match="withdrawn"):
        await cycle.attempt()
    assert cycle.log == ["add finalizer", "pre_bind"]
    assert cycle.state.rollback.side_effects is not None, "a later rollback needs the record"


async def test_a_request_that_fails_by_its_own_calls_is_not_requeued(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> BindRequest:
        raise ServerError("500 InternalError")

    monkeypatch.setattr(RecordingWriter, "add_finalizer", refuse)
    cycle = Cycle(backoff_limit=0)
    with pytest.raises(ReconcileError):
        await cycle.attempt()
    cycle.clock.step(timedelta(seconds=REPORT_AFTER_S))
    assert await cycle.attempt() == DONE
    assert cycle.log[1:] == ["status Failed", "event BindingFailed", "condition BackoffLimitExceeded"]
