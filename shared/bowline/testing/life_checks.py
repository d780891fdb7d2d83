"""Checks of a plugin beside others: other pods, a second pod, a cancellation at each await, an outage, its rights.

Each yields what is wrong, one sentence each.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from bowline.framework.interface.status import UNLIMITED, Done, Status, Transient, Waiting
from bowline.testing.binding_checks import CANCEL_LIMIT_S, difference, text_of, undisturbed, until, within
from bowline.testing.expected import Expected
from bowline.testing.lab import Lab, LabProcess, Trial, trial
from bowline.testing.pausing import Pause, is_end
from bowline.testing.subject import Subject

# For the tasks that a cancelled attempt has left to end by themselves.
_DRAIN_S = 5.0
_WRITES = ("create", "update", "patch", "delete")
# The checks in which the paths of a plugin are tried.
_EXERCISES = {"declared_writes", "interrupted_writes", "rollback", "release", "rejected_writes"}


async def serves_two_pods(lab: Lab, subject: Subject) -> AsyncIterator[str]:
    """Two pods at once end as the same two in turn, at whichever await of the first the second one is bound."""
    expected = await undisturbed(lab, subject)
    in_turn = await _ends_in_turn(lab, subject, expected)
    for stop in expected.stops:
        async with _two_processes(lab, subject, expected) as (process, other):
            status = await _crossed(process, other, Pause(process.plugin, subject.files, stop))
            ends = await _ends(process.trial, expected)
        when = f"while pre_bind or bind is in {stop[0]}, another pod is bound: then"
        text = difference(when, status, ends, in_turn)
        if text and ends != await _ends_in_turn(lab, subject, expected, is_swapped=True):
            yield f"{text}; two pods at once must end as in turn: keep what belongs to a pod in ctx.state"
            return


@asynccontextmanager
async def _two_processes(
    lab: Lab, subject: Subject, expected: Expected
) -> AsyncIterator[tuple[LabProcess, LabProcess]]:
    """Start the plugin's process; yields it, and the same for another pod in the namespace."""
    async with trial(lab, subject) as made, made.process() as process:
        other = replace(process, trial=await made.beside())
        made.before = made.footprint(expected.collections)
        yield process, other


async def _ends_in_turn(
    lab: Lab, subject: Subject, expected: Expected, *, is_swapped: bool = False
) -> dict[str, str]:
    """Bind one pod after the other."""
    async with _two_processes(lab, subject, expected) as (process, other):
        for bound in (other, process) if is_swapped else (process, other):
            await within(subject, bound.succeed())
        return await _ends(process.trial, expected)


async def _crossed(process: LabProcess, other: LabProcess, pause: Pause) -> Status | None:
    """Bind the other pod while the attempt of the first one pauses; returns the status of the one that failed.

    A plugin may let the other one wait, as with a lock: then the first one continues.
    """
    subject = process.trial.subject
    attempt = asyncio.create_task(process.attempt())
    await until(partial(_is_at, attempt, pause), subject.limit_s)
    others_attempt = asyncio.create_task(within(subject, other.succeed()))
    await asyncio.wait([others_attempt], timeout=subject.limit_s / 4)
    pause.resume()
    status = await within(subject, _ended(attempt, process))
    others_status = await others_attempt
    return others_status if not isinstance(others_status, Done) else status


def _is_at(attempt: "asyncio.Task[Status]", pause: Pause) -> bool:
    return attempt.done() or pause.is_reached


async def _ended(attempt: "asyncio.Task[Status]", process: LabProcess) -> Status:
    status = await attempt
    return status if isinstance(status, Done) else await process.succeed()


async def _ends(made: Trial, expected: Expected) -> dict[str, str]:
    """Return what is left, and what the pods have."""
    ends = made.footprint(expected.collections)
    for word, pods_trial in zip(("the first pod", "the second pod"), (made, *made.others), strict=True):
        pod, _ = await pods_trial.stored()
        ends[f"{word}'s metadata"] = made.neutral(
            str([sorted((pod["metadata"].get(field) or {}).items()) for field in ("annotations", "labels")])
        )
    return ends


async def ends_when_cancelled(lab: Lab, subject: Subject) -> AsyncIterator[str]:
    """Cancelled at any await, an attempt ends soon; rolled back, it leaves nothing, also when all tasks ended."""
    expected = await undisturbed(lab, subject)
    for stop in expected.stops:
        if is_end(stop):
            continue
        async with trial(lab, subject) as made, made.process() as process:
            made.before = made.footprint(expected.collections)
            tasks = asyncio.all_tasks()
            attempt = asyncio.create_task(process.attempt(lambda: True))
            pause = Pause(process.plugin, subject.files, stop, attempt.cancel)
            await until(partial(_is_at, attempt, pause), subject.limit_s)
            await asyncio.wait([attempt], timeout=CANCEL_LIMIT_S)
            if not attempt.cancelled():
                attempt.cancel()
                await asyncio.wait([attempt], timeout=_DRAIN_S)
                if pause.is_reached:
                    why = f"ignores its cancellation in {stop[0]} for {CANCEL_LIMIT_S:g} s"
                    yield f"{why}; let CancelledError through"
                    return
                continue
            await within(subject, process.roll_back())
            if late := asyncio.all_tasks() - tasks - {attempt}:
                await asyncio.wait(late, timeout=_DRAIN_S)
            if left := made.footprint(expected.collections):
                yield f"cancelled in {stop[0]} and rolled back, it leaves {', '.join(sorted(left))}"
                return


async def waits_in_an_outage(lab: Lab, subject: Subject) -> AsyncIterator[str]:
    """While what is outside does not answer, a request waits without a limit, and nothing counts as returned."""
    if subject.outage is None:
        return
    expected = await undisturbed(lab, subject)
    async with trial(lab, subject) as made, made.process() as process:
        made.before = made.footprint(expected.collections)
        with subject.outage():
            status = await within(subject, process.attempt(lambda: True))
            is_bound = isinstance(status, Done)
            if is_bound and made.footprint(expected.collections) != expected.footprint:
                yield "in an outage the pod is bound without its effect outside; return Status.outage"
        errors = "; ".join(process.calls.errors)
        is_outage = isinstance(status, Waiting) and status.timeout == UNLIMITED and not errors
        if not is_bound and not is_outage and not isinstance(status, Transient):
            yield f"an attempt in an outage ends {errors or text_of(status)}; return Status.outage"
        process.calls.errors.clear()
        await within(subject, process.succeed())
        await made.end_pod()
        held = made.footprint(expected.collections)
        with subject.outage():
            status = await within(subject, process.runner.run_release(await made.context(process)))
        if held and isinstance(status, Done) and made.footprint(expected.collections) == held:
            yield f"release returns OK in an outage, and {', '.join(sorted(held))} stays; return Status.outage"


async def uses_its_rights(lab: Lab, subject: Subject) -> AsyncIterator[str]:
    """What `access` declares is used: after every other check, in which each path of the plugin was tried."""
    if not lab.checks[subject] >= _EXERCISES:
        return
    calls = [exchange.call for exchange in lab.proxy.exchanges(lab.began[subject])]
    for rule in subject.plugin.access.rules:
        verbs = {
            call.verb for call in calls if (call.group, call.kind.partition(" ")[2]) == (rule.group, rule.resource)
        }
        unused = [verb for verb in rule.verbs if verb not in verbs and (verb in _WRITES or not verbs)]
        if unused:
            yield f"access declares {', '.join(unused)} of {rule.resource}, which nothing uses; drop it"
    access = subject.plugin.access
    own = (access.binding_annotations, access.binding_labels)
    of_pods = (access.pod_annotations, access.pod_labels, access.pod_conditions)
    if unset := {key for keys in (*own, *of_pods) for key in keys} - lab.keys[subject]:
        yield f"access declares {', '.join(sorted(unset))} on pods, which nothing sets; drop it"
