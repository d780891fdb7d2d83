"""The Runner: order of calls for success and for a failure at each point, groups, rollback, exceptions."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import pytest

from bowline.api import names
from bowline.api.bindrequest import AllocationKind, decode_bind_request
from bowline.api.meta import ObjectKey, ObjectRef
from bowline.framework.binding.calls import PluginCaller
from bowline.framework.binding.runner import Runner, order_by_point
from bowline.framework.config import Settings
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.plugin import Plugin, PluginConfig
from bowline.framework.interface.status import Done, Fatal, Retriable, Status, Transient, Waiting
from bowline.framework.reason import Reason
from bowline.kube.errors import (
    ApiError,
    ApiStatus,
    Conflict,
    ConnectionFailed,
    Expired,
    Forbidden,
    Invalid,
    TooManyRequests,
    Unreadable,
)
from bowline.testing.builders import bind_request, pod, stored
from bowline.testing.handles import context_for
from tests.unit.framework.recording import Calls, RecordingPlugin


@dataclass
class RecordingObserver:
    """An Observer that records its calls."""

    errors: list[tuple[str, str]] = field(default_factory=list)

    def plugin_raised(self, plugin: str, point: str, context: BindContext | None, error: Exception) -> None:
        self.errors.append((plugin, point))


def context() -> BindContext:
    request = stored(bind_request(uid="pod-uid"), uid="request-uid")
    return context_for(request, stored(pod(), uid="pod-uid"), {"metadata": {"name": "node-0"}})


def runner(*plugins: Plugin) -> tuple[Runner, RecordingObserver]:
    observer = RecordingObserver()
    return Runner(plugins, PluginCaller(observer)), observer


def returning(status: Status) -> Callable[[], Status]:
    return lambda: status


def raises(error: BaseException) -> Callable[[], Any]:
    def act() -> Any:
        raise error

    return act


async def run_cycle(run: Runner, ctx: BindContext) -> Status:
    """The calls of an attempt."""
    status = await run.run_pre_bind(ctx)
    if isinstance(status, Done):
        status = await run.run_bind(ctx)
    if isinstance(status, Done):
        await run.run_post_bind(ctx)
    elif isinstance(status, Fatal):
        await run.run_rollback(ctx, status)
    return status


async def test_order_of_a_success() -> None:
    calls: Calls = []
    a = RecordingPlugin("a", calls)
    b = RecordingPlugin("b", calls, {"bind": returning(Status.ok())})
    c = RecordingPlugin("c", calls, {"bind": raises(AssertionError("not asked: b has bound"))})
    run, _ = runner(a, b, c)
    assert isinstance(await run_cycle(run, context()), Done)
    assert calls == [
        *("a.pre_bind", "b.pre_bind", "c.pre_bind"),
        *("a.binding_annotations", "b.binding_annotations", "c.binding_annotations"),
        *("a.bind", "b.bind"),
        *("a.post_bind", "b.post_bind", "c.post_bind"),
    ]


@pytest.mark.parametrize(
    ("point", "expectation"),
    [
        pytest.param("pre_bind", ["a.pre_bind", "b.pre_bind"],
            id="a failure in pre_bind keeps later plugins from it"),
        pytest.param("bind", [*("a.pre_bind", "b.pre_bind", "c.pre_bind"),
            *("a.binding_annotations", "b.binding_annotations", "c.binding_annotations"), *("a.bind", "b.bind")],
            id="a failure in bind keeps later binders from it"),
    ],
)  # fmt: skip
async def test_order_of_a_terminal_failure(point: str, expectation: Calls) -> None:
    calls: Calls = []
    a = RecordingPlugin("a", calls)
    b = RecordingPlugin("b", calls, {point: returning(Status.fatal("no"))})
    c = RecordingPlugin("c", calls)
    run, _ = runner(a, b, c)
    assert await run_cycle(run, context()) == Status.fatal("no").from_plugin("b")
    on_failure_calls = ["a.on_failure", "b.on_failure", "c.on_failure"]
    undone = ["c.rollback", "b.rollback", "a.rollback"]
    assert calls == expectation + on_failure_calls + undone


@pytest.mark.parametrize("point", ["pre_bind", "bind"])
async def test_a_failure_of_the_api_server_is_not_the_plugins_failure(point: str) -> None:
    run, observer = runner(RecordingPlugin("a", [], {point: raises(ConnectionFailed("connection refused"))}))
    status = await run_cycle(run, context())
    assert isinstance(status, Transient)
    assert observer.errors == []


class ForeignPlugin(BindingPlugin):
    """A plugin of another author, whose pre_bind raises the error."""

    name = "foreign"

    def __init__(self, error: ApiError) -> None:
        super().__init__(PluginConfig(), Settings())
        self._error = error

    async def pre_bind(self, ctx: BindContext) -> Status:
        raise self._error


@pytest.mark.parametrize(
    ("error", "foreign", "built_in"),
    [
        pytest.param(Forbidden(ApiStatus(403, "Forbidden",
            'x is forbidden: User "x" cannot get resource "configmaps"')), Waiting, Fatal, id="no right"),
        pytest.param(Forbidden(ApiStatus(403, "Forbidden", "configmaps denied the request: no team label")), Fatal,
            Fatal, id="another's policy"),
        pytest.param(Invalid(ApiStatus(422, "Invalid",
            "x: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no")), Fatal, Fatal,
            id="another's policy, with its default code"),
        pytest.param(Invalid(ApiStatus(422, "Invalid", 'admission webhook "w.example.com" denied the request: no')),
            Fatal, Fatal, id="a webhook with a code of its own"),
        pytest.param(Invalid(ApiStatus(422, "Invalid", "data: too long")), Waiting, Fatal, id="its own body"),
        pytest.param(Conflict(ApiStatus(409, "Conflict", "changed")), Waiting, Transient, id="another writer"),
        pytest.param(Expired(ApiStatus(410, "Expired", "old")), Waiting, Transient, id="a list that lasts too long"),
    ],
)  # fmt: skip
async def test_a_decision_of_the_api_server_that_a_plugin_does_not_answer(
    error: ApiError, foreign: type[Status], built_in: type[Status]
) -> None:
    run, observer = runner(ForeignPlugin(error))
    status = await run.run_pre_bind(context())
    assert (type(status), status.plugin) == (foreign, "foreign")
    # What is denied for this request alone is no mistake of the plugin.
    assert observer.errors == ([] if foreign is Fatal else [("foreign", "pre_bind")])
    run, observer = runner(RecordingPlugin("a", [], {"pre_bind": raises(error), "rollback": raises(error)}))
    status = await run.run_pre_bind(context())
    assert (type(status), status.plugin) == (built_in, "a")
    assert isinstance(await run.run_rollback(context(), status), Retriable)
    assert observer.errors == []


async def test_skip_from_pre_bind_reads_as_ok() -> None:
    run, _ = runner(RecordingPlugin("a", [], {"pre_bind": returning(Status.skip())}))
    assert isinstance(await run.run_pre_bind(context()), Done)


async def test_a_bind_that_all_plugins_skip_fails() -> None:
    run, _ = runner(RecordingPlugin("a", []), RecordingPlugin("b", []))
    status = await run.run_bind(context())
    assert isinstance(status, Fatal)
    assert status.reason is Reason.NO_PLUGIN


async def test_the_binding_has_the_annotations_of_all_plugins() -> None:
    prepared = Status.ok(annotations={"x": "1", "y": "1"})
    first = RecordingPlugin("a", [], {"pre_bind": returning(prepared)})
    answers = {"pre_bind": returning(Status.ok(labels={"l": "3"})), "bind": returning(Status.ok())}
    second = RecordingPlugin("b", [], {**answers, "binding_annotations": lambda: {"y": "1", "z": "2"}})
    run, _ = runner(first, second)
    c = context()
    assert isinstance(await run_cycle(run, c), Done)
    assert c.annotations == {"x": "1", "y": "1", "z": "2"}
    assert c.labels == {"l": "3"}


async def test_what_only_pre_bind_may_add_and_what_the_framework_sets_are_defects() -> None:
    late = RecordingPlugin("a", [], {"bind": returning(Status.ok(annotations={"x": "1"}))})
    assert "only the OK of pre_bind may have them" in (await run_cycle(runner(late)[0], context())).message
    c = context()
    c.annotations["bowline.dev/prepared-for"] = "uid"
    replacing = RecordingPlugin("a", [], {"binding_annotations": lambda: {"bowline.dev/prepared-for": "other"}})
    assert "the framework sets" in (await runner(replacing)[0].run_bind(c)).message


async def test_a_rollback_that_is_not_overridden_is_the_release() -> None:
    class Holds(BindingPlugin):
        name = "holds"
        released = 0

        async def release(self, ctx: BindContext) -> Status:
            self.released += 1
            return Status.outage("not yet") if self.released == 1 else Status.ok()

    plugin = Holds(PluginConfig(), Settings())
    run, _ = runner(plugin)
    assert isinstance(await run.run_rollback(context(), Status.fatal("no")), Retriable)
    assert isinstance(await run.run_rollback(context(), Status.fatal("no")), Done)
    assert plugin.released == 2
    assert run.answers(context().request, None).effects == {"holds"}


UNAVAILABLE, BUSY = (
    ConnectionFailed("unavailable"),
    TooManyRequests("busy", ApiStatus(429, retry_after=timedelta(seconds=7))),
)


@pytest.mark.parametrize(
    ("failures", "kind", "after"),
    [
        pytest.param([UNAVAILABLE], Transient, None, id="only the API server"),
        pytest.param([UNAVAILABLE, BUSY], Transient, 7, id="the longest of several retry-after times"),
        pytest.param([UNAVAILABLE, RuntimeError("stuck")], Retriable, None, id="the API server and the plugin"),
    ],
)
async def test_the_cause_of_a_failed_rollback(
    failures: list[Exception], kind: type[Status], after: int | None
) -> None:
    plugins = [RecordingPlugin(f"p{n}", [], {"rollback": raises(error)}) for n, error in enumerate(failures)]
    run, _ = runner(*plugins)
    status = await run.run_rollback(context(), Status.fatal("no"))
    assert type(status) is kind
    assert not isinstance(status, Done)
    assert status.retry_after == (timedelta(seconds=after) if after else None)
    assert status.plugin == f"p{len(failures) - 1}"


async def test_a_plugin_that_fails_without_a_reason_is_named() -> None:
    run, _ = runner(RecordingPlugin("a", [], {"rollback": returning(Retriable())}))
    assert await run.run_rollback(context(), Status.fatal("no")) == Retriable(("a: no reason given",), "a")


async def test_what_cannot_be_read_keeps_no_request_and_is_named() -> None:
    refused = raises(Unreadable("configmaps default/a: its JSON is refused"))
    run, _ = runner(RecordingPlugin("a", []), RecordingPlugin("b", [], {"rollback": refused, "release": refused}))
    for undo in (run.run_rollback(context(), Status.fatal("no")), run.run_release(context())):
        assert await undo == Done(("b: configmaps default/a: its JSON is refused",))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        pytest.param(None, ("off: is not enabled, so what it has prepared stays",), id="a plugin that is off"),
        pytest.param("unreadable",
            tuple(f"{n}: the request's spec cannot be read, so what it has prepared is not known"
                for n in ("a", "off")), id="a spec that is not decoded"),
    ],
)  # fmt: skip
async def test_what_nobody_can_undo_is_named(spec: str | None, expected: tuple[str, ...]) -> None:
    run, _ = runner(RecordingPlugin("a", []))
    body = stored(bind_request(uid="pod-uid"), uid="request-uid")
    body["metadata"]["annotations"] = {names.EFFECTS: "a,off"}
    c = replace(context(), request=decode_bind_request(body | ({"spec": spec} if spec else {})))
    for undo in (run.run_rollback(c, Status.fatal("no")), run.run_release(c)):
        assert await undo == Done(expected)


class RecordingNeighbour(RecordingPlugin):
    parallel = True


async def test_a_plugins_state_is_its_own_until_a_rollback_or_the_end_of_the_request() -> None:
    states: list[tuple[str, dict[str, Any]]] = []

    class First(BindingPlugin):
        name = "first"

        async def pre_bind(self, ctx: BindContext) -> Status:
            states.append((self.name, dict(ctx.state)))
            ctx.state["prepared"] = self.name
            return Status.ok()

        async def rollback(self, ctx: BindContext, why: Status) -> Status:
            states.append((self.name, dict(ctx.state)))
            ctx.state["undone"] = True
            return Status.retry("busy")

    class Second(First):
        name = "second"

    run, _ = runner(First(PluginConfig(), Settings()), Second(PluginConfig(), Settings()))
    c = context()
    empty: list[tuple[str, dict[str, Any]]] = [("first", {}), ("second", {})]
    for _ in range(2):
        await run.run_pre_bind(c)
    prepared = [(name, {"prepared": name}) for name in ("first", "second")]
    assert states == [*empty, *prepared]
    for _ in range(2):
        await run.run_rollback(c, Status.fatal("taken"))
    assert states[4:] == [*empty[::-1], *empty[::-1]]
    await run.run_pre_bind(c)
    await run.forget(c.request.key, c.states)
    await run.run_pre_bind(c)
    assert states[8:] == [*empty, *empty]


async def test_a_request_is_forgotten_by_the_plugins_that_were_called_for_it() -> None:
    calls: Calls = []
    idle = RecordingPlugin("idle", calls, {"applies": does_not_apply})
    run, _ = runner(RecordingPlugin("first", calls, {}), RecordingPlugin("second", calls, {}), idle)
    ctx = context()
    await run.run_pre_bind(ctx)
    for _ in range(2):
        await run.forget(ctx.request.key, ctx.states)
    assert calls == ["first.pre_bind", "second.pre_bind", "first.forget", "second.forget"]
    await run.run_rollback(ctx, Status.fatal("withdrawn"))  # whether it applies or not
    await run.forget(ctx.request.key, ctx.states)
    assert calls[-3:] == ["first.forget", "second.forget", "idle.forget"]


# --- waits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plugins", "waiting", "called"),
    [
        pytest.param("abc", "a", "a", id="a wait ends the run"),
        pytest.param("ABC", "AB", "ABC", id="parallel neighbours wait at the same time"),
        pytest.param("AbC", "A", "A", id="a serial one is not called after a wait"),
        pytest.param("aBC", "a", "a", id="nor is a parallel one after the wait of a serial one"),
        pytest.param("AbC", "C", "AbC", id="each is called that follows no wait"),
    ],
)
async def test_after_a_wait_only_parallel_neighbours_are_called(plugins: str, waiting: str, called: str) -> None:
    """An upper-case letter is a parallel plugin."""
    calls: Calls = []
    refs = {name: ObjectRef("v1", "ConfigMap", ObjectKey("default", name)) for name in waiting}
    answers = {name: {"pre_bind": returning(Status.wait(name, refs[name]))} for name in waiting}
    kinds = [
        (RecordingNeighbour if name.isupper() else RecordingPlugin)(name, calls, answers.get(name))
        for name in plugins
    ]
    status = await runner(*kinds)[0].run_pre_bind(context())
    assert calls == [f"{name}.pre_bind" for name in called]
    assert isinstance(status, Waiting)
    assert (status.plugin, status.reasons) == (",".join(waiting), tuple(waiting))
    assert [single.plugin for single in status.waits] == list(waiting)


async def test_a_failure_has_priority_over_a_wait() -> None:
    waits, fails = (
        RecordingNeighbour(name, [], {"pre_bind": returning(status)})
        for name, status in (("a", Status.wait("a")), ("b", Status.fatal("no")))
    )
    assert isinstance(await runner(waits, fails)[0].run_pre_bind(context()), Fatal)


# --- facts ----------------------------------------------------------------------------------------------


async def test_a_method_that_is_not_overridden_is_not_called() -> None:
    class Plain(BindingPlugin):
        name = "plain"

    run, _ = runner(Plain(PluginConfig(), Settings()))
    assert await run.run_pre_bind(context()) == Status.ok()
    assert all(not names for names in order_by_point([Plain(PluginConfig(), Settings())]).values())


# --- what concerns a plugin -----------------------------------------------------------------------------


def does_not_apply() -> bool:
    return False


async def test_a_plugin_that_does_not_apply_is_not_called_and_separates_nothing() -> None:
    calls: Calls = []
    broken = raises(KeyError("not its pod"))
    answers = dict.fromkeys(("pre_bind", "binding_annotations", "bind", "post_bind"), broken)
    other_plugin = RecordingPlugin(
        "other", calls, {**answers, "applies": does_not_apply, "on_failure": broken}, effects=True
    )
    mine = RecordingPlugin("mine", calls, {"bind": returning(Status.ok())})
    run, observer = runner(other_plugin, mine)
    ctx = context()
    assert isinstance(await run_cycle(run, ctx), Done)
    assert [call for call in calls if call.startswith("other.")] == []
    assert observer.errors == []
    assert run.answers(ctx.request, ctx.pod).effects == set()


class Changes(BindingPlugin):
    """Changes the arguments of pure queries. Bowline's own plugins change none, and share the objects."""

    name = "changes"

    def applies(self, pod: Any, request: Any) -> bool:
        for raw in (pod, request.raw):
            raw["metadata"].clear()
        return True

    def has_side_effects(self, request: Any, pod: Any) -> bool:
        return self.applies(pod, request)

    async def rollback(self, ctx: BindContext, why: Status) -> Status:
        return Status.ok()


class Reads(RecordingPlugin):
    """States what the arguments of the pure queries contain."""

    def applies(self, pod: Any, request: Any) -> bool:
        return bool(pod["metadata"] and request.raw["metadata"])

    def has_side_effects(self, request: Any, pod: Any) -> bool:
        return bool(pod["metadata"] and request.raw["metadata"])


def test_a_pure_query_that_changes_its_arguments_changes_no_answer_and_no_cached_object() -> None:
    run, _ = runner(Changes(PluginConfig(), Settings()), Reads("reads", []))
    ctx = context()
    before = copy.deepcopy((ctx.request.raw, ctx.pod))
    answers = run.answers(ctx.request, ctx.pod)
    assert (answers.demands, answers.idle) == (frozenset(AllocationKind), frozenset())
    assert answers.effects == {"changes", "reads"}
    assert (ctx.request.raw, ctx.pod) == before


@pytest.mark.parametrize(
    ("record", "called"),
    [
        pytest.param(None, ["b", "a"], id="no record, as of an older release"),
        pytest.param("a", ["a"], id="one plugin"),
        pytest.param("a,b", ["b", "a"], id="both"),
        pytest.param("gone", [], id="a plugin that is not enabled any more"),
    ],
)
@pytest.mark.parametrize("is_pod_gone", [False, True])
async def test_the_recorded_plugins_are_rolled_back_whatever_applies_now(
    record: str | None, called: list[str], is_pod_gone: bool
) -> None:
    calls: Calls = []
    run, _ = runner(*(RecordingPlugin(name, calls, {"applies": does_not_apply}) for name in "ab"))
    raw = stored(bind_request(uid="pod-uid"), uid="request-uid")
    if record is not None:
        raw["metadata"]["annotations"] = {names.EFFECTS: record}
    ctx = replace(context(), request=decode_bind_request(raw), pod=None if is_pod_gone else stored(pod()))
    assert isinstance(await run.run_rollback(ctx, Status.fatal("withdrawn")), Done)
    assert calls == [f"{name}.rollback" for name in called]
