"""Common mistakes of a plugin's author, at every extension point: none of them lets a pod pass unprepared."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from bowline.api.meta import ObjectKey
from bowline.framework.binding.calls import PluginCaller
from bowline.framework.binding.runner import Runner
from bowline.framework.config import Settings
from bowline.framework.interface.access import Access, AccessRule
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.plugin import PluginConfig
from bowline.framework.interface.status import UNLIMITED, Cancelled, Done, Fatal, Retriable, Status, Waiting
from bowline.kube.binding import MAX_ANNOTATION_BYTES
from bowline.kube.calls import Call, require_permit
from bowline.kube.resources import CONFIGMAPS
from tests.unit.framework.recording import Calls, RecordingPlugin
from tests.unit.framework.test_runner import RecordingObserver, context, raises, returning, runner


def returns(value: Any) -> Callable[[], Any]:
    return lambda: value


async def _coroutine() -> None:
    return None


MISTAKES = {
    "raises": raises(KeyError("typo")),
    "exits": raises(SystemExit(1)),
    "is interrupted": raises(KeyboardInterrupt()),
    "raises what is no Exception": raises(BaseException("quit")),
    "ends its generator": raises(GeneratorExit()),
    "is cancelled by itself": raises(asyncio.CancelledError()),
    "returns None": returns(None),
    "returns True": returns(True),
    "returns a string": returns("OK"),
    "returns a status-like tuple": returns((Done, "fine")),
    "returns what only the framework reports": returns(Cancelled()),
    "returns a Status of no class": returns(Status()),
    "returns a coroutine": _coroutine,
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("point", ["applies", "pre_bind", "binding_annotations", "bind", "rollback"])
async def test_a_mistake_is_a_wait_that_names_plugin_and_point(point: str, mistake: str) -> None:
    calls: Calls = []
    run, observer = runner(
        RecordingPlugin("author", calls, {point: MISTAKES[mistake]}),
        RecordingPlugin("binder", calls, {"bind": returning(Status.ok())}),
    )
    c = context()
    if (point, mistake) == ("applies", "returns True"):
        return  # what it must return
    status = await run.run_pre_bind(c)
    if isinstance(status, Done) and point != "rollback":
        status = await run.run_bind(c)
    if point == "rollback":
        # A rollback is repeated until it succeeds: whatever its failure, the request is not released.
        status = await run.run_rollback(c, Status.fatal("no"))
        assert isinstance(status, Retriable)
    else:
        # Repaired, the plugin may serve the request: nothing is counted, nothing ends, no other node is suggested.
        assert isinstance(status, Waiting)
        assert (status.timeout, status.suggestion) == (UNLIMITED, None)
    assert status.plugin == "author"
    assert observer.errors == [("author", point)]
    assert "binder.bind" not in calls


@pytest.mark.parametrize("mistake", [name for name in MISTAKES if name != "returns None"])
async def test_a_mistake_in_post_bind_or_forget_is_counted_and_stops_no_plugin(mistake: str) -> None:
    class Author(RecordingPlugin):
        async def post_bind(self, c: Any) -> None:
            return MISTAKES[mistake]()  # type: ignore[no-any-return]

        async def forget(self, key: Any) -> None:
            return MISTAKES[mistake]()  # type: ignore[no-any-return]

    calls: Calls = []
    run, observer = runner(Author("author", calls), RecordingPlugin("other", calls))
    c = context()
    await run.run_post_bind(c)
    await run.forget(c.request.key, c.states)
    assert calls == ["other.post_bind", "other.forget"]
    assert observer.errors == [("author", "post_bind"), ("author", "forget")]


@pytest.mark.parametrize("mistake", [name for name in MISTAKES if name != "returns None"])
@pytest.mark.parametrize("point", ["pre_bind", "bind"])
async def test_a_mistake_of_on_failure_keeps_the_failure(point: str, mistake: str) -> None:
    calls: Calls = []
    answers = {point: returning(Status.retry("not ready")), "on_failure": MISTAKES[mistake]}
    run, observer = runner(RecordingPlugin("author", calls, answers), RecordingPlugin("volumes", calls))
    status = await (run.run_bind(context()) if point == "bind" else run.run_pre_bind(context()))
    assert status == Status.retry("not ready").from_plugin("author")
    assert observer.errors == [("author", "on_failure")]
    assert "volumes.on_failure" in calls


class Writes(BindingPlugin):
    """Sends a write that it does not declare, as far as its client lets it."""

    name = "writes"

    async def pre_bind(self, ctx: BindContext) -> Status:
        require_permit(Call("POST", "create", CONFIGMAPS, ObjectKey("default", "licence")))
        return Status.ok()


async def test_an_undeclared_write_is_a_mistake_where_policies_limit_the_account() -> None:
    """Another plugin may have declared it: then the account has the right, and no policy denies it."""
    limited, free = (Writes(PluginConfig(), Settings(granted_plugins=granted)) for granted in (("other",), None))
    run, observer = runner(limited)
    status = await run.run_pre_bind(context())
    assert isinstance(status, Waiting)
    assert (status.timeout, status.plugin) == (UNLIMITED, "writes")
    assert "plugin writes may not create configmaps default/licence" in status.message
    assert observer.errors == [("writes", "pre_bind")]
    assert await runner(free)[0].run_pre_bind(context()) == Status.ok()
    declared = type("Declared", (Writes,), {"access": Access((AccessRule("configmaps", ("create",)),))})
    assert await runner(declared(limited.args, limited.settings))[0].run_pre_bind(context()) == Status.ok()


LARGE = "x" * MAX_ANNOTATION_BYTES


@pytest.mark.parametrize(
    ("field", "additions"),
    [
        *((field, additions)
            for field in ("annotations", "labels")
            for additions in ({"x/y": 1}, {1: "x"}, ["x"], "x=y", {"x/y": None}, {"a b": "1"}, {"first/key": "2"})),
        ("annotations", {"x/y": LARGE}),
        ("annotations", {"x/y": LARGE[:-200]}),
        ("labels", {"x/y": "a b"}),
        ("labels", {"x/y": "x" * 64}),
    ],
)  # fmt: skip
async def test_what_the_pod_cannot_have_is_the_mistake_of_the_plugin_that_adds_it(field: str, additions: Any) -> None:
    """The API server would name no plugin, and stores some of it: then no update of the pod is possible."""
    calls: Calls = []
    first = RecordingPlugin("first", calls, {"pre_bind": returns(Status.ok(**{field: {"first/key": "1"}}))})
    author = RecordingPlugin("author", calls, {"pre_bind": returns(Status.ok(**{field: additions}))})
    run, observer = runner(first, author)
    c = context()
    c = replace(c, pod={**(c.pod or {}), "metadata": {"annotations": {"its/own": LARGE[:1000]}}})
    assert isinstance(await run.run_pre_bind(c), Done)
    status = await run.run_bind(c)
    assert isinstance(status, Waiting)
    assert (status.timeout, status.plugin) == (UNLIMITED, "author")
    assert observer.errors == [("author", "pre_bind")]
    assert "author.bind" not in calls


async def test_a_pod_whose_own_annotations_leave_no_room_is_no_mistake_of_a_plugin() -> None:
    author = RecordingPlugin("author", [], {"binding_annotations": returns({"x/y": "1"}), "bind": Status.ok})
    run, observer = runner(author)
    c = context()
    c = replace(c, pod={**(c.pod or {}), "metadata": {"annotations": {"its/own": LARGE[:-8]}}})
    assert isinstance(await run.run_bind(c), Done)  # what posts the Binding refuses it
    assert observer.errors == []


class Author(RecordingPlugin):
    """Returns from has_side_effects what the test sets."""

    def __init__(self, act: Callable[[], Any]) -> None:
        super().__init__("author", [])
        self.act = act

    def has_side_effects(self, request: Any, pod: Any) -> Any:
        return self.act()


@pytest.mark.parametrize("mistake", [name for name in MISTAKES if name != "returns True"])
def test_a_mistake_in_leaves_effects_counts_as_effects(mistake: str) -> None:
    observer = RecordingObserver()
    answers = Runner([Author(MISTAKES[mistake])], PluginCaller(observer)).answers(context().request, None)
    assert answers.effects == {"author"}
    assert ("author", "has_side_effects") in observer.errors


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: Status.retry("x", 5), id="retry_after in seconds"),  # type: ignore[arg-type]
        pytest.param(lambda: Status.wait("x", "pod"), id="wake_on by name"),  # type: ignore[arg-type]
        pytest.param(lambda: Status.fatal("x", "Rejected"), id="reason by name"),
        pytest.param(lambda: Status.fatal("x", "no seat"), id="reason of two words"),
        pytest.param(lambda: Status.fatal("x", ""), id="empty reason"),
        pytest.param(lambda: Status.fatal("x", 5), id="a number for a reason"),  # type: ignore[arg-type]
        pytest.param(lambda: Fatal(("x",), word="no seat"), id="word of two words"),
        pytest.param(lambda: Retriable("x"), id="reasons as one string"),  # type: ignore[arg-type]
        pytest.param(lambda: Status.fatal(KeyError("x")), id="an exception for a text"),  # type: ignore[arg-type]
        pytest.param(lambda: Status("RETRY"), id="code by name"),  # type: ignore[arg-type]
        pytest.param(lambda: Status.fatal("x", suggestion="DeletePod"), id="suggestion"),  # type: ignore[arg-type]
    ],
)
async def test_a_status_with_a_wrong_field_is_the_plugins_failure(make: Callable[[], Status]) -> None:
    with pytest.raises(TypeError, match="of a Status must be"):
        make()
    run, observer = runner(RecordingPlugin("author", [], {"pre_bind": make}))
    status = await run.run_pre_bind(context())
    assert isinstance(status, Waiting)
    assert status.plugin == "author"
    assert observer.errors == [("author", "pre_bind")]
