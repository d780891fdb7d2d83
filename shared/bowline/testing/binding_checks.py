"""Checks of a plugin's binding methods on a real API server. Each yields what is wrong, one sentence each."""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

from bowline.framework.binding.runner import Runner, at_point
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.status import Done, Skipped, Status, Waiting
from bowline.testing import builders
from bowline.testing.expected import Expected, is_binding
from bowline.testing.fault_proxy.calls import WRITE_VERBS
from bowline.testing.fault_proxy.faults import (
    DropBefore,
    FaultAnswer,
    FaultGate,
    FieldPath,
    Hold,
    LoseReply,
    Rewrite,
    field_paths,
)
from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
from bowline.testing.lab import Lab, LabProcess, Trial, trial
from bowline.testing.pausing import Pause
from bowline.testing.plugin_process import background_errors
from bowline.testing.purity import BLOCKING, blocked_places, recorded
from bowline.testing.subject import Subject

# How long a cancelled call may take to end.
CANCEL_LIMIT_S = 2.0
# How long a call may keep the event loop from a turn.
BLOCK_LIMIT_S = 1.0
# Threads of an executor stay for the next call.
_POOLS = ("asyncio_", "ThreadPoolExecutor")
_BLOCKING = ("time.sleep", "subprocess", BLOCKING, "socket.getaddrinfo")
# For the kit's own reads before the first call of a plugin: on a busy machine they take seconds.
_READ_LIMIT_S = 60.0
# For a watch to show what was read already.
_WATCH_LIMIT_S = 5.0
# For a late write to be executed once it may; only one that is never sent takes so long.
_LATE_LIMIT_S = 30.0
_REJECTIONS = (403, 409, 422, 500)
_WRITE = CallMatch(verbs=WRITE_VERBS)


async def is_concerned(lab: Lab, subject: Subject) -> AsyncIterator[str]:
    """The pod that is bound concerns the plugin, else nothing of its binding was checked; one without annotations,
    labels and resources makes it raise nothing.
    """
    async with trial(lab, subject) as made, made.process() as process:
        ctx = await made.context(process)
        await within(subject, process.attempt())
        own = [status for plugin, status in process.calls.results if plugin == process.plugin.name]
        is_skipped = bool(own) and all(isinstance(status, Skipped) for status in own)
        remedy = "give one that concerns it: `pods` of the suite"
        if process.plugin.name in process.runner.answers(ctx.request, ctx.pod).idle:
            yield f"not checked: applies is False for the sample pod, so nothing else is called; {remedy}"
        elif is_skipped:
            yield f"not checked: every method returns SKIP for the sample pod; {remedy}"
    other = replace(subject, pods=[builders.pod("other")], request={})
    async with trial(lab, other) as made, made.process() as process:
        await within(subject, process.attempt(lambda: True))
        for error in dict.fromkeys(process.calls.errors):
            yield f"a pod without annotations, labels and resources: {error}"


async def binds(lab: Lab, subject: Subject) -> AsyncIterator[str]:
    """An undisturbed attempt succeeds, raises nothing, and ends in time without blocking the event loop."""
    async with trial(lab, subject) as made, _term(made) as (process, texts):
        with _unblocked(subject) as places:
            tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
            status = await within(subject, process.attempt(), lambda: process.is_calling)
            left = asyncio.all_tasks() - tasks
            left_threads = [thread for thread in threading.enumerate() if thread not in threads]
            pod, _ = await made.stored()
        for place in places:
            yield place
        if status is None and process.wait:
            why = f"an attempt still waits after {subject.limit_s:g} s: {process.wait.message}"
            yield f"{why}; `world` of the suite plays the other party"
        elif status is None:
            yield f"an attempt has not ended after {subject.limit_s:g} s; a call that needs longer returns WAIT"
        elif not isinstance(status, Done):
            yield f"an undisturbed attempt ends {status.code}: {status.message or process.calls.errors}"
        elif pod["spec"].get("nodeName") != made.node:
            yield f"bind returns OK, and the pod is on {pod['spec'].get('nodeName') or 'no node'}, not on {made.node}"
        elif process.wait and not await _is_woken(made, process, process.wait):
            why = f"no event has ended the wait {process.wait.message!r}: it lasts until a poll, or its timeout"
            remedy = "cover its wake_on by event_sources, without a queueing_hint that excludes its end"
            yield f"{why}; {remedy}, or return retry_after"
        for error in process.calls.errors:
            yield f"raises in {error}"
        for name in background_errors(process.metrics):
            yield f"{name} raises"
        for text in _left_behind(left, left_threads):
            yield text
    for text in texts:
        yield text


async def _is_woken(made: Trial, process: LabProcess, wait: Waiting) -> bool:
    """Whether the reconciler would have noticed the end of the wait; that of a built-in plugin may be polled."""
    if wait.retry_after is not None or made.subject.is_builtin:
        return True
    request = (await made.context(process)).request.key
    await until(lambda: process.ends_wait(request, wait.wake_on), _WATCH_LIMIT_S)
    return process.ends_wait(request, wait.wake_on)


@asynccontextmanager
async def _term(made: Trial) -> AsyncIterator[tuple[LabProcess, list[str]]]:
    """Start the plugin's process; yields it, with a list of what it leaves when it has ended."""
    tasks, texts = asyncio.all_tasks(), list[str]()
    async with made.process() as process:
        yield process, texts
    await asyncio.sleep(0)
    for task in asyncio.all_tasks() - tasks:
        texts.append(f"leaves the task {_name_of(task)} when its term has ended; cancel it at the end of `run`")
        task.cancel()


@contextmanager
def _unblocked(subject: Subject) -> Iterator[list[str]]:
    """Yields a list, in which the texts about what blocks the event loop are when the block has ended."""
    texts: list[str] = []
    with recorded() as events, blocked_places(BLOCK_LIMIT_S, subject.files) as places:
        yield texts
    texts += [
        f"blocks the event loop for more than {BLOCK_LIMIT_S:g} s: {place}; await, or use asyncio.to_thread"
        for place in places
    ]
    texts += [f"blocks the event loop: {event}" for event in dict.fromkeys(events) if event.startswith(_BLOCKING)]


def _left_behind(tasks: Iterable["asyncio.Task[Any]"], threads: Iterable[threading.Thread]) -> Iterator[str]:
    for task in tasks:
        yield f"leaves the task {_name_of(task)} behind; await it"
        task.cancel()
    for thread in threads:
        if thread.is_alive() and not thread.name.startswith(_POOLS):
            yield f"leaves the thread {thread.name} behind; use asyncio.to_thread, and await it"


async def declares_its_access(lab: Lab, subject: Subject) -> AsyncIterator[str]:
    """The API server denies nothing from pre_bind to the end of the pod, and a rollback covers every write."""
    since = lab.proxy.latest()
    async with trial(lab, subject) as made, made.process() as process:
        ctx = await made.context(process)
        others = [plugin for plugin in process.chain if plugin is not process.plugin]
        own_prefix = f"{process.plugin.name}/"
        await within(subject, Runner(others, process.calls).run_pre_bind(ctx))
        started, shared = lab.proxy.latest(), set(ctx.shared)
        await within(subject, Runner([process.plugin], process.calls).run_pre_bind(ctx))
        writes = lab.writes(started)
        if writes and process.plugin.name not in process.runner.answers(ctx.request, ctx.pod).effects:
            is_without = not at_point([process.plugin], BindingPlugin.rollback)
            why = "it has no rollback" if is_without else "has_side_effects is False"
            yield f"pre_bind writes ({writes[0].kind}), and {why}: nothing undoes it"
        if strangers := [key for key in ctx.shared if key not in shared and not key.startswith(own_prefix)]:
            yield f"sets {strangers[0]!r} in ctx.shared; its own begin with {own_prefix!r}"
        view = ctx.views.get(process.plugin.name, ctx)
        if (view.pod, view.request.raw) != (ctx.pod, ctx.request.raw):
            yield "changes ctx.pod or ctx.request, which are copies; pass Status.ok what the pod is to have"
        await made.hold(ctx, process.runner.answers(ctx.request, ctx.pod).effects)
        await within(subject, process.roll_back())
        await within(subject, process.succeed())
        await made.end_pod()
        await within(subject, process.release())
        for text in lab.denials(process.plugin, since):
            yield text


async def forgets(lab: Lab, subject: Subject) -> AsyncIterator[str]:
    """Of a request that no longer exists nothing stays in memory: of the plugin, its classes and modules."""
    async with trial(lab, subject) as made, made.process() as process:
        await within(subject, process.succeed())
        request = (await made.context(process)).request
        await made.end_pod()
        await within(subject, process.release())
        process.calls.errors.clear()
        await process.runner.forget(request.key, process.states)
        for error in process.calls.errors:
            yield f"raises in {error}"
        marks = (request.uid, request.pod_uid, repr(request.key), str(request.key))
        for name, value in _memory(process.plugin, subject.files):
            if any(mark in repr(value) for mark in marks):
                yield f"{name} keeps a request that no longer exists; drop it in forget"


def _memory(plugin: BindingPlugin, files: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yield what outlives a call, by its name: also class attributes and a module's globals."""
    yield from ((f"self.{name}", value) for name, value in vars(plugin).items())
    for module in [module for module in sys.modules.values() if getattr(module, "__file__", None) in files]:
        yield from vars(module).items()
    for kind in type(plugin).__mro__:
        if getattr(sys.modules[kind.__module__], "__file__", None) in files:
            yield from ((f"{kind.__name__}.{name}", value) for name, value in vars(kind).items())


async def survives_interruptions(lab: Lab, subject: Subject) -> AsyncIterator[str]:
    """Killed before or after any write, the next process ends in the state of an undisturbed attempt; if a reply is
    lost, so does the same one.
    """
    expected = await undisturbed(lab, subject)
    cases: tuple[tuple[str, type[DropBefore | LoseReply] | None], ...] = (
        ("killed before", DropBefore),
        ("killed after", LoseReply),
        ("after the lost reply of", None),
    )
    for number, (words, fault) in product(expected.writes, cases):
        async with trial(lab, subject) as made:
            made.before = made.footprint(expected.collections)
            if fault is not None:
                await _killed_at(lab, made, number, fault)
            async with made.process() as process:
                with nullcontext() if fault else _disturbed(lab, FaultRule(LoseReply(), _WRITE, nth=number)):
                    status = await within(subject, process.succeed())
            when = f"{words} {expected.words(number)}"
            if text := difference(when, status, made.footprint(expected.collections), expected.footprint):
                yield text


async def rolls_back(lab: Lab, subject: Subject) -> AsyncIterator[str]:
    """Abandoned at any write, the rollback of a new process leaves nothing, and succeeds again when repeated; also
    when the pod is gone.
    """
    expected = await undisturbed(lab, subject)
    # Kubernetes' own controllers undo some of what the built-in plugins do, when a pod is gone.
    kinds = ("",) if subject.is_builtin else ("", " of a pod that is gone")
    for number, of_pod in product(expected.writes, kinds):
        async with trial(lab, subject) as made:
            made.before = made.footprint(expected.collections)
            await _killed_at(lab, made, number, LoseReply if expected.is_own(number) else DropBefore)
            if of_pod:
                await made.end_pod()
            for times in ("", " a second time"):
                async with made.process() as process:
                    status = await within(subject, process.roll_back())
                where = f"the rollback{of_pod}{times} after {expected.words(number)}"
                if not isinstance(status, Done):
                    yield f"{where} ends {text_of(status)}"
                remains = made.footprint(expected.collections).items()
                if left := sorted(key for key, text in remains if not (of_pod and _is_owned(text))):
                    yield f"{where} leaves {', '.join(left)}"
                    break


async def releases(lab: Lab, subject: Subject) -> AsyncIterator[str]:
    """When a bound pod is gone, nothing of it stays: ``release`` of a new process removes it, also when repeated.

    An object that the pod owns is the garbage collector's. What another pod of the namespace holds stays.
    """
    expected = await undisturbed(lab, subject)
    async with trial(lab, subject) as made:
        other = await made.beside()
        async with other.process() as process:
            await within(subject, process.succeed())
        footprint = made.footprint(expected.collections)
        async with made.process() as process:
            await within(subject, process.succeed())
        await made.end_pod()
        other_keys = footprint.keys() & made.footprint(expected.collections).keys()
        for times in ("", " a second time"):
            async with made.process() as process:
                with _unblocked(subject) as places:
                    status = await within(subject, process.release())
            for place in places:
                yield f"release {place}"
            if not isinstance(status, Done):
                yield f"release{times}, when the pod is gone, ends {text_of(status)}"
        remains = made.footprint(expected.collections)
        if missing := other_keys - remains.keys():
            yield f"release removes {', '.join(sorted(missing))}, which another pod holds; remove this request's own"
        if left := [key for key, text in remains.items() if footprint.get(key) != text and not _is_owned(text)]:
            remedy = "remove it in release, or let the pod own it"
            yield f"leaves {', '.join(sorted(left))} for ever when the bound pod is gone; {remedy}"


def _is_owned(text: str) -> bool:
    owners = json.loads(text).get("metadata", {}).get("ownerReferences") or ()
    return any(owner.get("kind") == "Pod" for owner in owners)


async def reports_rejections(lab: Lab, subject: Subject) -> AsyncIterator[str]:
    """A write that the API server rejects, or stores without a part, is not reported as success."""
    expected = await undisturbed(lab, subject)
    for number in expected.own_writes:
        for code in _REJECTIONS:
            async with trial(lab, subject) as made, made.process() as process:
                with _disturbed(lab, FaultRule(FaultAnswer(code), _WRITE, nth=number)):
                    status = await within(subject, process.runner.run_pre_bind(await made.context(process)))
                made.before = {}
                state = made.footprint(expected.collections)
                if isinstance(status, Done) and len(state) < len(expected.footprint):
                    yield f"pre_bind is OK; {expected.words(number)} was rejected with {code}"
        for path in await _parts(lab, subject, number):
            async with trial(lab, subject) as made, made.process() as process:
                made.before = made.footprint(expected.collections)
                removals: list[FieldPath] = []
                with _disturbed(lab, FaultRule(_without(path, removals), _WRITE, nth=number)):
                    status = await within(subject, process.attempt(partial(bool, removals)))
                state = made.footprint(expected.collections)
            if isinstance(status, Done) and state != expected.footprint:
                what = f"{expected.words(number)} was stored without {'.'.join(path)}"
                yield f"binds the pod at once, and {what}; pass it as `essential`"


def _without(path: FieldPath, removals: list[FieldPath]) -> Rewrite:
    """Return the fault that removes a part, and adds its path to ``removals`` when it does."""
    fault = Rewrite.without(path)

    def change(body: Any) -> None:
        removals.append(path)
        fault.change(body)

    return Rewrite(change)


async def _parts(lab: Lab, subject: Subject, number: int) -> list[FieldPath]:
    """Return the parts of the body of a write; not those of a spec, of which only the plugin knows what matters."""
    paths: list[FieldPath] = []
    record = Rewrite(lambda body: paths.extend(field_paths(body, 2)))
    async with trial(lab, subject) as made, made.process() as process:
        with _disturbed(lab, FaultRule(record, _WRITE, nth=number)):
            await within(subject, process.attempt())
    return [path for path in paths if path[0] != "spec"]


async def survives_an_overtaking_leader(lab: Lab, subject: Subject) -> AsyncIterator[str]:
    """A write of the former leader that arrives late changes nothing of what the next one has bound."""
    expected = await undisturbed(lab, subject)
    for number in expected.own_writes:
        async with trial(lab, subject) as made:
            made.before = made.footprint(expected.collections)
            gate = FaultGate()
            lab.proxy.add(FaultRule(Hold(gate, outlives=True), _WRITE, nth=number))
            since = lab.proxy.latest()
            try:
                async with made.process() as former:
                    await _interrupted(former.attempt(), partial(gate.wait_reached, 0), subject.limit_s)
                async with made.process() as leader:
                    status = await within(subject, leader.succeed())
            finally:
                others = len(lab.writes(since))
                gate.open()
            await until(partial(_are_written, lab, since, others + 1), _LATE_LIMIT_S)
            lab.proxy.clear()
            when = f"after {expected.words(number)} of a former leader arrived late"
            if text := difference(when, status, made.footprint(expected.collections), expected.footprint):
                yield text


# --- what an undisturbed attempt does ---


async def undisturbed(lab: Lab, subject: Subject) -> Expected:
    """Return what an undisturbed attempt does; the first check of the subject in this lab makes it."""
    if subject not in lab.expected:
        since = lab.proxy.latest()
        async with trial(lab, subject) as made, made.process() as process:
            await within(subject, process.succeed())
        calls = lab.writes(since)
        collections = frozenset((call.group, call.resource) for call in calls if not is_binding(call))
        async with trial(lab, subject) as made, made.process() as process:
            made.before = made.footprint(collections)
            pause = Pause(process.plugin, subject.files)
            await within(subject, process.succeed())
            lab.expected[subject] = Expected(calls, made.footprint(collections), collections, pause.stops)
    return lab.expected[subject]


def _are_written(lab: Lab, since: int, number: int) -> bool:
    return len(lab.writes(since)) >= number


def difference(when: str, status: Status | None, actual: dict[str, str], expected: dict[str, str]) -> str:
    """Return how the end of a disturbed attempt differs from an undisturbed one's; empty if it does not."""
    if not isinstance(status, Done):
        return f"{when}, the next attempts end {text_of(status)}"
    if actual == expected:
        return ""
    extra, missing = sorted(actual.keys() - expected.keys()), sorted(expected.keys() - actual.keys())
    changed = sorted(key for key in actual.keys() & expected.keys() if actual[key] != expected[key])
    words = (("also has", extra), ("lacks", missing), ("has another content in", changed))
    return f"{when}, the end state " + "; ".join(f"{word} {', '.join(keys)}" for word, keys in words if keys)


def text_of(status: Status | None) -> str:
    """Return the status of ``within`` in words."""
    return "not in time" if status is None else f"{status.code}: {status.message}"


# --- running ---


async def within(
    subject: Subject, work: Coroutine[Any, Any, Status], is_calling: Callable[[], bool] = lambda: True
) -> Status | None:
    """Return the status; None if the work takes too long since it calls a plugin. Then it is cancelled."""
    task = asyncio.create_task(work)
    await until(lambda: task.done() or is_calling(), _READ_LIMIT_S)
    done, _ = await asyncio.wait([task], timeout=subject.limit_s)
    if not done:
        task.cancel()
        await asyncio.wait([task], timeout=CANCEL_LIMIT_S)
        return None
    return task.result()


async def _interrupted(work: Coroutine[Any, Any, Status], is_due: Callable[[], bool], limit_s: float) -> None:
    """Cancel the work as soon as the condition holds, and wait for its end."""
    task = asyncio.create_task(work)
    await until(lambda: task.done() or is_due(), limit_s)
    task.cancel()
    await asyncio.wait([task], timeout=CANCEL_LIMIT_S)


async def _killed_at(lab: Lab, made: Trial, number: int, fault: Callable[..., DropBefore | LoseReply]) -> None:
    """Run an attempt in a process that ends at a write: none of its later requests reaches the API server."""
    killed = asyncio.Event()
    loop = asyncio.get_running_loop()

    def kill() -> None:
        lab.proxy.add(FaultRule(DropBefore()))
        loop.call_soon_threadsafe(killed.set)

    with _disturbed(lab, FaultRule(fault(kill), _WRITE, nth=number)):
        async with made.process() as process:
            await _interrupted(process.attempt(), killed.is_set, made.subject.limit_s)


@contextmanager
def _disturbed(lab: Lab, rule: FaultRule) -> Iterator[None]:
    """Apply the rule until the block ends, with those that are added meanwhile."""
    lab.proxy.add(rule)
    try:
        yield
    finally:
        lab.proxy.clear()


async def until(condition: Callable[[], bool], limit_s: float) -> None:
    """Wait for a condition of another thread, at most so long."""
    deadline = asyncio.get_running_loop().time() + limit_s
    while not condition() and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110 - a thread's condition
        await asyncio.sleep(0.01)


def _name_of(task: "asyncio.Task[Any]") -> str:
    coroutine = task.get_coro()
    return getattr(coroutine, "__qualname__", task.get_name())
