"""Conformance of a plugin in one line: every mistake that Bowline knows how to find, each named by its check.

    from bowline.testing import conformance

    TestLicence = conformance.suite(Licence, args={"server": "licences"})

The class has one test for each check, for pytest. Checks of binding need a real API server: the fixture
``bowline_cluster`` of the wheel's pytest plugin starts one. ``run`` is the same without pytest.
"""

import asyncio
import traceback
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from typing import Any
from unittest import SkipTest

from bowline.framework.binding.lifecycle import PluginError
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.plugin import Plugin
from bowline.kube.object_client import ObjectClient
from bowline.kube.resources import Resource
from bowline.localcluster.cluster import Cluster
from bowline.testing import binding_checks, class_checks, life_checks
from bowline.testing.admission import NotAdmittedError
from bowline.testing.lab import Lab, lab_on
from bowline.testing.subject import Subject

__all__ = ["BINDING_CHECKS", "CLASS_CHECKS", "Mistake", "run", "suite"]

ClassCheck = Callable[[Subject], Iterator[str]]
BindingCheck = Callable[[Lab, Subject], AsyncIterator[str]]

CLASS_CHECKS: Mapping[str, ClassCheck] = {
    "class": class_checks.can_be_loaded,
    "queries": class_checks.answers_for_every_pod,
    "admission_results": class_checks.returns_errors,
    "admission_is_pure": class_checks.is_pure,
}
BINDING_CHECKS: Mapping[str, BindingCheck] = {
    "concerned": binding_checks.is_concerned,
    "binds": binding_checks.binds,
    "cancellation": life_checks.ends_when_cancelled,
    "declared_writes": binding_checks.declares_its_access,
    "interrupted_writes": binding_checks.survives_interruptions,
    "rollback": binding_checks.rolls_back,
    "release": binding_checks.releases,
    "forgets": binding_checks.forgets,
    "rejected_writes": binding_checks.reports_rejections,
    "overtaking_leader": binding_checks.survives_an_overtaking_leader,
    "two_pods": life_checks.serves_two_pods,
    "outage": life_checks.waits_in_an_outage,
    "unused_rights": life_checks.uses_its_rights,
}
# For what a check leaves.
_END_S = 2.0
# Need no attempt that succeeds; the others repeat one.
_WITHOUT_BIND = ("concerned", "declared_writes")
# The plugins that ship with Bowline have tests of their own for these.
_OF_OTHERS = ("concerned", "cancellation", "release", "forgets", "two_pods", "unused_rights")


@dataclass(frozen=True, slots=True)
class Mistake:
    """What a check has found."""

    check: str
    message: str

    def __str__(self) -> str:
        return f"{self.check}: {self.message}"


def suite(  # noqa: PLR0913 - the keywords of Subject
    plugin: type[Plugin],
    *,
    args: Mapping[str, Any] | None = None,
    pods: Sequence[dict[str, Any]] = (),
    objects: Sequence[tuple[Resource, Mapping[str, Any]]] = (),
    request: Mapping[str, Any] | None = None,
    limit_s: float = 10.0,
    others: Sequence[type[Plugin]] = (),
    world: Callable[[ObjectClient, str], Awaitable[None]] | None = None,
    effects: Callable[[], Iterable[str]] = tuple,
    outage: Callable[[], AbstractContextManager[object]] | None = None,
    denied: Sequence[dict[str, Any]] = (),
) -> type:
    """Return a test class with one test for each check; see ``Subject`` for the arguments."""
    subject = Subject(
        plugin, args or {}, pods, objects, request or {}, limit_s, others, world, effects, outage, denied
    )
    tests: dict[str, Any] = {"__doc__": f"Conformance of {plugin.__name__}."}
    for name, check in CLASS_CHECKS.items():
        tests[f"test_{name}"] = _class_test(check, subject)
    for name, binding_check in _live_checks(plugin).items():
        tests[f"test_{name}"] = _binding_test(name, binding_check, subject)
    return type("Conformance", (), tests)


def run(
    plugin: type[Plugin], cluster: Cluster | None, *, checks: Collection[str] = (), **subject: Any
) -> Iterator[Mistake]:
    """Yield the findings of the named checks, or of all. Without a cluster nothing is bound."""
    made = Subject(plugin, **subject)
    for name, check in CLASS_CHECKS.items():
        if checks and name not in checks:
            continue
        findings = [Mistake(name, message) for message in check(made)]
        yield from findings
        if findings and name == "class":  # it cannot be called
            return
    selected = {name: check for name, check in _live_checks(plugin).items() if not checks or name in checks}
    if cluster is not None and selected:
        yield from _live_findings(cluster, made, selected)


def _live_checks(plugin: type[Plugin]) -> Mapping[str, BindingCheck]:
    """Return the checks of the plugin that need an API server."""
    return BINDING_CHECKS if issubclass(plugin, BindingPlugin) else {}


def _live_findings(cluster: Cluster, made: Subject, selected: Mapping[str, BindingCheck]) -> Iterator[Mistake]:
    with ExitStack() as stack:
        lab = stack.enter_context(lab_on(cluster))
        for name, check in selected.items():
            yield from (Mistake(name, message) for message in _messages(name, check, lab, made) or ())


def _messages(name: str, check: BindingCheck, lab: Lab, subject: Subject) -> list[str] | None:
    """Return what a check finds; None if it needs an attempt that succeeds, and none does."""
    if subject in lab.unbound and name not in _WITHOUT_BIND:
        return None
    if subject.is_builtin and name in _OF_OTHERS:
        return []
    lab.began.setdefault(subject, lab.proxy.latest())
    try:
        messages = _run(_all(check, lab, subject))
    except PluginError as error:
        messages = [f"the plugin's process fails: {error}"]
    except NotAdmittedError as error:
        messages = [f"not checked: {error}"]
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and not _is_raised_in(error, subject.files):
            raise  # the user's
        messages = [f"not checked: the check ends with {type(error).__name__}: {error}"]
    lab.checks[subject].add(name)
    if messages and name == "binds":
        lab.unbound.add(subject)
    return messages


def _is_raised_in(error: BaseException, files: frozenset[str]) -> bool:
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1] in files


def _run(work: Coroutine[Any, Any, list[str]]) -> list[str]:
    """Return the result, as asyncio.run does; tasks that ignore their cancellation, and threads, are left behind."""
    loop, threads = asyncio.new_event_loop(), ThreadPoolExecutor()
    loop.set_default_executor(threads)
    try:
        return loop.run_until_complete(work)
    finally:
        loop.run_until_complete(_end_tasks())
        loop.run_until_complete(loop.shutdown_asyncgens())
        threads.shutdown(wait=False, cancel_futures=True)
        loop.close()


async def _end_tasks() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    stuck = (await asyncio.wait(left, timeout=_END_S))[1] if left else ()
    for task in stuck:
        with suppress(Exception):  # whatever it does at its end
            task.get_coro().close()
        task.cancel()
    for task in (await asyncio.wait(stuck, timeout=_END_S))[0] if stuck else ():
        if not task.cancelled():
            task.exception()


async def _all(check: BindingCheck, lab: Lab, subject: Subject) -> list[str]:
    return [message async for message in check(lab, subject)]


def _class_test(check: ClassCheck, subject: Subject) -> Callable[..., None]:
    def test(_: object) -> None:
        messages = list(check(subject))
        assert not messages, "; ".join(messages)  # noqa: S101 - a test

    test.__doc__ = check.__doc__
    return test


def _binding_test(name: str, check: BindingCheck, subject: Subject) -> Callable[..., None]:
    def test(_: object, bowline_lab: Lab) -> None:
        messages = _messages(name, check, bowline_lab, subject)
        if messages is None:
            raise SkipTest("not checked: an undisturbed attempt fails (test_binds)")
        assert not messages, "; ".join(messages)  # noqa: S101 - a test

    test.__doc__ = check.__doc__
    return test
