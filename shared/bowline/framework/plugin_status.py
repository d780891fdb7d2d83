"""The result of a plugin's binding method.

``Status`` here is never the ``.status`` of an object nor Kubernetes' metav1.Status (that is ``ApiStatus``). Expected
results are values, not exceptions: an exception from a plugin is a defect, for which the request waits, except an
``InfrastructureError`` of bowline.kube, which is not the plugin's failure.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import StrEnum
from typing import Any

from bowline.api.bindrequest import AllocationKind
from bowline.api.meta import ObjectRef
from bowline.framework.reason import Reason, Suggestion

# A wait for what only an operator or another release can change: no request ends by it.
UNLIMITED = timedelta(days=36500)
# A plugin's own reason.
_WORD = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")


class Code(StrEnum):
    """The result of a call. The values are those of the metric label ``code``.

    - ``OK``: done; the next plugin is called.
    - ``SKIP``: not handled by this plugin; the same as OK, except in bind, where the next plugin is called.
    - ``WAIT``: the decision is valid, but another component must act first. No attempt is counted and no worker held.
    - ``RETRY``: failed, may succeed on retry; uses an attempt.
    - ``FATAL``: this decision can never succeed; it is rolled back, and the scheduler must decide again.
    - ``TRANSIENT``: the API server gave no decision; uses no attempt. Normally set by the framework.
    - ``CANCELLED``: the request was withdrawn during the attempt. Set by the framework only.
    """

    OK = "OK"
    SKIP = "SKIP"
    WAIT = "WAIT"
    RETRY = "RETRY"
    FATAL = "FATAL"
    TRANSIENT = "TRANSIENT"
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class Status:
    """One result, from one of the class methods below. Raises TypeError for a wrong type.

    - ``reasons``: sentences for users, joined in ``status.reason`` of the request.
    - ``plugin``: set by the framework.
    - ``reason``: FATAL: the machine-readable reason.
    - ``word``: FATAL: a reason of the plugin's own, reported as ``plugin/Word``; ``reason`` is then REJECTED.
    - ``retry_after``: RETRY, TRANSIENT: not sooner than this; WAIT: poll at this interval.
    - ``wake_on``: WAIT: requeue when one of these changes. A reference with the resourceVersion that was read also
      notices a change between that read and the wait. A failure: the objects that it is about.
    - ``timeout``: WAIT: how long this wait may last, then the request ends Failed/WaitTimeout; None: the setting
      binding.waitTimeout.
    - ``suggestion``: reported with a terminal failure, also with a wait that expires.
    - ``denial``: FATAL: the print of the API server's denial of the Binding. Set by the framework only.
    - ``annotations``, ``labels``: OK of pre_bind: what the Binding carries to the pod.
    - ``merged``: the waits that this one consists of, set by ``merge_waits``: each expires by itself.
    """

    code: Code
    reasons: tuple[str, ...] = ()
    plugin: str = ""
    reason: Reason | None = None
    retry_after: timedelta | None = None
    wake_on: tuple[ObjectRef, ...] = ()
    timeout: timedelta | None = None
    suggestion: Suggestion | None = None
    word: str = ""
    denial: str = ""
    merged: "tuple[Status, ...]" = ()
    annotations: Mapping[str, str] | None = None
    labels: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        """Raise TypeError for a field of the wrong type.

        It must be raised inside the plugin's call: raised later, it could not be attributed to a plugin.
        """
        if not isinstance(self.code, Code):
            raise _wrong("code", "a Code", self.code)
        if not isinstance(self.reasons, tuple) or not _all_are(str, self.reasons):
            raise _wrong("reasons", "a tuple of strings", self.reasons)
        if not isinstance(self.wake_on, tuple) or not _all_are(ObjectRef, self.wake_on):
            raise _wrong("wake_on", "a tuple of ObjectRef", self.wake_on)
        if not isinstance(self.plugin, str):
            raise _wrong("plugin", "a string", self.plugin)
        if self.reason is not None and not isinstance(self.reason, Reason):
            raise _wrong("reason", "a Reason", self.reason)
        if self.word and not is_word(self.word):
            raise _wrong("reason", "a Reason or one word such as NoSeat", self.word)
        if self.suggestion is not None and not isinstance(self.suggestion, Suggestion):
            raise _wrong("suggestion", "a Suggestion", self.suggestion)
        for duration in (self.retry_after, self.timeout):
            if duration is not None and not isinstance(duration, timedelta):
                raise _wrong("retry_after and timeout", "a timedelta", duration)

    @property
    def message(self) -> str:
        """The reasons as one line."""
        return "; ".join(self.reasons)

    @property
    def waits(self) -> "tuple[Status, ...]":
        """The waits of several plugins or objects that this WAIT consists of, each with its plugin's name."""
        if not self.merged:
            return (self,)
        return tuple(single.from_plugin(self.plugin) for part in self.merged for single in part.waits)

    @property
    def may_be_transient(self) -> bool:
        """Whether it may be the API server's failure and not the request's.

        Besides TRANSIENT this is a missing permission, which an authorizer that has just started also reports.
        """
        return self.code is Code.TRANSIENT or self.reason is Reason.RBAC_MISSING

    def from_plugin(self, name: str) -> "Status":
        """Return the same result with the plugin's name, unless it has one."""
        return self if self.plugin else replace(self, plugin=name)

    def about(self, *objects: ObjectRef) -> "Status":
        """Return a failure with the objects that it is about; any other result, or one that names some, unchanged."""
        is_failure = self.code in (Code.RETRY, Code.FATAL)
        return replace(self, wake_on=objects) if is_failure and objects and not self.wake_on else self

    @classmethod
    def ok(cls, annotations: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None) -> "Status":
        """Return the result of a call that is done.

        Of pre_bind also with ``annotations`` and ``labels`` for the pod, which the Binding carries; an API server
        older than Kubernetes 1.35 may ignore the labels.
        """
        return cls(Code.OK, annotations=annotations, labels=labels) if annotations or labels else _OK

    @classmethod
    def skip(cls) -> "Status":
        """Return the result of a call that this plugin does not handle."""
        return _SKIP

    @classmethod
    def wait(
        cls,
        why: str,
        *wake_on: ObjectRef,
        retry_after: timedelta | None = None,
        timeout: timedelta | None = None,
        suggestion: Suggestion | None = None,
    ) -> "Status":
        """Wait without holding a worker, until one of ``wake_on`` changes or ``retry_after`` has passed.

        ``retry_after`` is the poll interval for what no watch reports. ``timeout`` is how long the wait may last;
        without one the setting binding.waitTimeout applies. ``suggestion`` is reported if the wait expires. Raises
        ValueError for a duration that is not positive.
        """
        for name, duration in (("retry_after", retry_after), ("timeout", timeout)):
            if duration is not None and duration <= timedelta(0):
                raise ValueError(f"{name} of a wait must be positive, not {duration.total_seconds():g} s")
        return cls(
            Code.WAIT, (why,), retry_after=retry_after, wake_on=wake_on, timeout=timeout, suggestion=suggestion
        )

    @classmethod
    def outage(cls, why: str, retry_after: timedelta = timedelta(seconds=10)) -> "Status":
        """Return that what the plugin depends on does not answer, such as a licence server.

        It says nothing about the pod or the node: the request waits as long as that lasts, no attempt is counted, and
        the limits of its other waits stand still. Reported after 5 s.
        """
        return cls.wait(why, retry_after=retry_after, timeout=UNLIMITED)

    @classmethod
    def retry(cls, why: str, after: timedelta | None = None, suggestion: Suggestion | None = None) -> "Status":
        """Return a failure that a retry may resolve, not sooner than ``after``.

        With a ``suggestion`` of RESCHEDULE_ELSEWHERE or DELETE_POD, and without a backoffLimit of the request, it is
        returned to the scheduler after the first attempt.
        """
        return cls(Code.RETRY, (why,), retry_after=after, suggestion=suggestion)

    @classmethod
    def fatal(
        cls, why: str, reason: Reason | str = Reason.REJECTED, suggestion: Suggestion | None = None
    ) -> "Status":
        """Return a failure that ends the request with ``reason``, and ``suggestion`` for its scheduler.

        A ``reason`` of the plugin's own is one word, such as ``NoSeat``: it is reported as ``plugin/NoSeat``. Raises
        TypeError for anything else.
        """
        if isinstance(reason, str) and not isinstance(reason, Reason):
            if not reason or reason in {member.value for member in Reason}:
                raise _wrong("reason", "a Reason or a word of the plugin's own such as NoSeat", reason)
            return cls(Code.FATAL, (why,), reason=Reason.REJECTED, suggestion=suggestion, word=reason)
        return cls(Code.FATAL, (why,), reason=reason, suggestion=suggestion)


@dataclass(frozen=True, slots=True)
class Answers:
    """What the plugins state of a request and its pod; pure, asked once per attempt."""

    demands: frozenset[AllocationKind] = frozenset()  # the allocations that plugins support
    errors: tuple[str, ...] = ()  # of plugins that could not state it
    effects: frozenset[str] = frozenset()  # the plugins of which an attempt may leave side effects
    holders: tuple[str, ...] = ()  # the plugins that may hold something for the pod once it is bound
    idle: frozenset[str] = frozenset()  # the plugins that do not apply
    defects: tuple[Status, ...] = ()  # of plugins that could not state whether they apply: each concerns every pod


def merge_waits(waits: Sequence[Status]) -> Status:
    """Merge several WAIT of one group: all their reasons, woken by any of their objects.

    The shortest poll interval and the shortest timeout that a plugin has set apply. The suggestion is the one of the
    wait that expires first, else the first one given.
    """
    if len(waits) == 1:
        return waits[0]
    by_timeout = sorted(waits, key=lambda status: status.timeout or timedelta.max)
    return Status(
        Code.WAIT,
        tuple(reason for status in waits for reason in status.reasons),
        plugin=",".join(filter(None, (status.plugin for status in waits))),
        retry_after=min((status.retry_after for status in waits if status.retry_after), default=None),
        wake_on=tuple(ref for status in waits for ref in status.wake_on),
        timeout=by_timeout[0].timeout,
        suggestion=next((status.suggestion for status in by_timeout if status.suggestion), None),
        merged=tuple(waits),
    )


def merge_failures(failures: Sequence[Status]) -> Status:
    """Merge several failures: all their reasons, the longest retry_after; TRANSIENT if all are, else RETRY."""
    code = Code.TRANSIENT if all(status.code is Code.TRANSIENT for status in failures) else Code.RETRY
    return Status(
        code,
        tuple(f"{status.plugin}: {status.message}" for status in failures),
        plugin=failures[0].plugin,
        wake_on=tuple(ref for status in failures for ref in status.wake_on),
        retry_after=max(
            (status.retry_after for status in failures if status.retry_after and status.code is not Code.WAIT),
            default=None,  # the poll interval of a wait is none of a repetition
        ),
    )


def undone(results: Sequence[Status]) -> Status:
    """Return OK if every rollback or release has returned OK or SKIP; else the failures as one.

    The reasons of an OK name what is not undone, such as what is on an object that could not be read.
    """
    failures = [status for status in results if status.code not in (Code.OK, Code.SKIP)]
    if failures:
        return merge_failures(failures)
    unread = [status for status in results if status.code is Code.OK and status.reasons]
    return Status(Code.OK, tuple(f"{status.plugin}: {status.message}" for status in unread))


def is_word(text: str) -> bool:
    """Return whether the text may be a plugin's own reason."""
    return _WORD.fullmatch(text) is not None


def _all_are(kind: type, values: tuple[Any, ...]) -> bool:
    for value in values:  # noqa: SIM110 - an answer is made several times a bind, and all() takes three times as long
        if not isinstance(value, kind):
            return False
    return True


def _wrong(field: str, expected: str, value: Any) -> TypeError:
    return TypeError(f"{field} of a Status must be {expected}, not {value!r}")


_OK = Status(Code.OK)
_SKIP = Status(Code.SKIP)
