"""The result of a plugin's binding method: a union, one class for each kind, with the fields that it may have.

``Status`` here is never the ``.status`` of an object nor Kubernetes' metav1.Status (that is ``ApiStatus``). Expected
results are values, not exceptions: an exception from a plugin is a defect, for which the request waits, except an
``InfrastructureError`` of bowline.kube, which is not the plugin's failure.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, ClassVar, Self

from bowline.api.bindrequest import AllocationKind
from bowline.api.meta import ObjectRef
from bowline.framework.reason import Reason, Suggestion

# A wait for what only an operator or another release can change: no request ends by it.
UNLIMITED = timedelta(days=36500)
# While a plugin is defective, it is tried again at this interval. A repaired one comes with a new process; the poll
# finds a repaired right, or what was no defect.
DEFECT_POLL = timedelta(seconds=30)
# A plugin's own reason.
_WORD = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
# What each constructor checks: the types of fields, and the items of tuples. isinstance() in a generator would take
# three times as long, and a result is made several times a bind.
_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("reasons", "wake_on", "objects"), tuple),
    **dict.fromkeys(("retry_after", "timeout"), timedelta | None),
    **dict.fromkeys(("plugin", "word", "denial"), str),
    "reason": Reason,
    "suggestion": Suggestion | None,
}
_ITEMS: Mapping[str, Callable[[Any], bool]] = {
    "reasons": str.__instancecheck__,
    **dict.fromkeys(("wake_on", "objects"), ObjectRef.__instancecheck__),
}


@dataclass(frozen=True, slots=True)
class Status:
    """One result: an instance of one of the classes below, most of them from a method of this one.

    ``code`` is the metric label of the class. ``reasons`` are sentences for users, joined in ``status.reason`` of the
    request; ``plugin`` is set by the framework. Each class raises TypeError for a field of the wrong type: it must be
    raised inside the plugin's call, as later it could not be attributed to a plugin.
    """

    code: ClassVar[str]
    reasons: tuple[str, ...] = ()
    plugin: str = ""

    def __post_init__(self) -> None:
        for name in self.__match_args__:
            value, is_item = getattr(self, name), _ITEMS.get(name)
            if not isinstance(value, _TYPES.get(name, object)) or (is_item and not all(map(is_item, value))):
                raise _wrong(name, next(field.type for field in fields(self) if field.name == name), value)

    @property
    def message(self) -> str:
        """The reasons as one line."""
        return "; ".join(self.reasons)

    @property
    def may_be_transient(self) -> bool:
        """Whether it may be the API server's failure and not the request's.

        Besides a Transient this is a missing permission, which an authorizer that has just started also reports.
        """
        return isinstance(self, Transient) or (isinstance(self, Fatal) and self.reason is Reason.RBAC_MISSING)

    def from_plugin(self, name: str) -> Self:
        """Return the same result with the plugin's name, unless it has one."""
        return self if self.plugin else replace(self, plugin=name)

    def about(self, *objects: ObjectRef) -> Self:
        """Return a Failure with the objects that it is about; any other result, or one that names some, unchanged."""
        return self

    @staticmethod
    def ok(annotations: Mapping[str, str] | None = None, labels: Mapping[str, str] | None = None) -> "Done":
        """Return the result of a call that is done.

        Of pre_bind also with ``annotations`` and ``labels`` for the pod, which the Binding carries; an API server
        older than Kubernetes 1.35 may ignore the labels.
        """
        return Done(annotations=annotations, labels=labels) if annotations or labels else _OK

    @staticmethod
    def skip() -> "Skipped":
        """Return the result of a call that this plugin does not handle."""
        return _SKIP

    @staticmethod
    def wait(
        why: str,
        *wake_on: ObjectRef,
        retry_after: timedelta | None = None,
        timeout: timedelta | None = None,
        suggestion: Suggestion | None = None,
    ) -> "Waiting":
        """Wait without holding a worker, until one of ``wake_on`` changes or ``retry_after`` has passed.

        ``retry_after`` is the poll interval for what no watch reports. ``timeout`` is how long the wait may last;
        without one the setting binding.waitTimeout applies. ``suggestion`` is reported if the wait expires. Raises
        ValueError for a duration that is not positive.
        """
        for name, duration in (("retry_after", retry_after), ("timeout", timeout)):
            if duration is not None and duration <= timedelta(0):
                raise ValueError(f"{name} of a wait must be positive, not {duration.total_seconds():g} s")
        return Waiting((why,), retry_after=retry_after, wake_on=wake_on, timeout=timeout, suggestion=suggestion)

    @staticmethod
    def outage(why: str, retry_after: timedelta = timedelta(seconds=10)) -> "Waiting":
        """Return that what the plugin depends on does not answer, such as a licence server.

        It says nothing about the pod or the node: the request waits as long as that lasts, no attempt is counted, and
        the limits of its other waits stand still. Reported after 5 s.
        """
        return Status.wait(why, retry_after=retry_after, timeout=UNLIMITED)

    @staticmethod
    def retry(why: str, after: timedelta | None = None, suggestion: Suggestion | None = None) -> "Retriable":
        """Return a failure that a retry may resolve, not sooner than ``after``.

        With a ``suggestion`` of RESCHEDULE_ELSEWHERE or DELETE_POD, and without a backoffLimit of the request, it is
        returned to the scheduler after the first attempt.
        """
        return Retriable((why,), retry_after=after, suggestion=suggestion)

    @staticmethod
    def fatal(why: str, reason: Reason | str = Reason.REJECTED, suggestion: Suggestion | None = None) -> "Fatal":
        """Return a failure that ends the request with ``reason``, and ``suggestion`` for its scheduler.

        A ``reason`` of the plugin's own is one word, such as ``NoSeat``: it is reported as ``plugin/NoSeat``. Raises
        TypeError for anything else.
        """
        if isinstance(reason, Reason):
            return Fatal((why,), reason=reason, suggestion=suggestion)
        if not reason or reason in {member.value for member in Reason}:
            raise _wrong("reason", "a Reason or a word of the plugin's own such as NoSeat", reason)
        return Fatal((why,), suggestion=suggestion, word=reason)


@dataclass(frozen=True, slots=True)
class Done(Status):
    """The next plugin is called.

    - ``reasons``, of a rollback or release: what is not undone, such as what is on an object that could not be read.
    - ``annotations``, ``labels``, of pre_bind: what the Binding carries to the pod.
    """

    code = "OK"
    annotations: Mapping[str, str] | None = None
    labels: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Skipped(Status):
    """Not handled by this plugin; the same as Done, except in bind, where the next plugin is called."""

    code = "SKIP"
    reasons: tuple[str, ...] = field(default=(), init=False)


@dataclass(frozen=True, slots=True)
class Waiting(Status):
    """The decision is valid, but another component must act first. No attempt is counted and no worker held.

    - ``wake_on``: requeue when one of these changes. A reference with the resourceVersion that was read also notices
      a change between that read and the wait.
    - ``retry_after``: poll at this interval.
    - ``timeout``: how long this wait may last, then the request ends Failed/WaitTimeout with ``suggestion``; None: as
      long as the setting binding.waitTimeout.
    - ``merged``: the waits that this one consists of, set by ``merge_waits``: each expires by itself.
    """

    code = "WAIT"
    wake_on: tuple[ObjectRef, ...] = ()
    retry_after: timedelta | None = None
    timeout: timedelta | None = None
    suggestion: Suggestion | None = None
    merged: "tuple[Waiting, ...]" = ()

    @property
    def waits(self) -> "tuple[Waiting, ...]":
        """The waits of several plugins or objects that this one consists of, each with its plugin's name."""
        if not self.merged:
            return (self,)
        return tuple(single.from_plugin(self.plugin) for part in self.merged for single in part.waits)


@dataclass(frozen=True, slots=True)
class Failure(Status):
    """Retriable or Fatal: if the request ends by it, reported with ``suggestion`` and the ``objects`` it is about."""

    suggestion: Suggestion | None = None
    objects: tuple[ObjectRef, ...] = ()

    def about(self, *objects: ObjectRef) -> Self:
        return replace(self, objects=objects) if objects and not self.objects else self


@dataclass(frozen=True, slots=True)
class Retriable(Failure):
    """Failed, may succeed on retry, not sooner than ``retry_after``; uses an attempt."""

    code = "RETRY"
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Fatal(Failure):
    """This decision can never succeed; it is rolled back, and the scheduler must decide again.

    - ``reason``: the machine-readable reason; REJECTED if the plugin has one of its own, ``word``, which is reported
      as ``plugin/Word``.
    - ``denial``: the print of the API server's denial of the Binding. Set by the framework only.
    """

    code = "FATAL"
    reason: Reason = Reason.REJECTED
    word: str = ""
    denial: str = ""

    def __post_init__(self) -> None:
        Status.__post_init__(self)
        if self.word and not is_word(self.word):
            raise _wrong("word", "one word such as NoSeat", self.word)


@dataclass(frozen=True, slots=True)
class Transient(Status):
    """The API server gave no decision; uses no attempt. Retried not sooner than ``retry_after``.

    Normally set by the framework.
    """

    code = "TRANSIENT"
    retry_after: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Cancelled(Status):
    """The request was withdrawn during the attempt. Set by the framework only."""

    code = "CANCELLED"


@dataclass(frozen=True, slots=True)
class Answers:
    """What the plugins state of a request and its pod; pure, asked once per attempt."""

    demands: frozenset[AllocationKind] = frozenset()  # the allocations that plugins support
    effects: frozenset[str] = frozenset()  # the plugins of which an attempt may leave side effects
    holders: tuple[str, ...] = ()  # the plugins that may hold something for the pod once it is bound
    idle: frozenset[str] = frozenset()  # the plugins that do not apply
    defects: tuple[Status, ...] = ()  # of plugins that could not state whether they apply: each concerns every pod


def merge_waits(waits: Sequence[Waiting]) -> Waiting:
    """Merge several waits of one group: all their reasons, woken by any of their objects.

    The shortest poll interval and the shortest timeout that a plugin has set apply. The suggestion is the one of the
    wait that expires first, else the first one given.
    """
    if len(waits) == 1:
        return waits[0]
    by_timeout = sorted(waits, key=lambda status: status.timeout or timedelta.max)
    return Waiting(
        tuple(reason for status in waits for reason in status.reasons),
        plugin=",".join(filter(None, (status.plugin for status in waits))),
        retry_after=min((status.retry_after for status in waits if status.retry_after), default=None),
        wake_on=tuple(ref for status in waits for ref in status.wake_on),
        timeout=by_timeout[0].timeout,
        suggestion=next((status.suggestion for status in by_timeout if status.suggestion), None),
        merged=tuple(waits),
    )


def merge_statuses(answers: Sequence[Status]) -> Status:
    """Return the first failure, else all waits merged, else OK with the reasons of all: what is not undone."""
    failures = [answer for answer in answers if not isinstance(answer, Done | Waiting)]
    if failures:
        return failures[0]
    waits = [answer for answer in answers if isinstance(answer, Waiting)]
    return merge_waits(waits) if waits else Done(tuple(reason for answer in answers for reason in answer.reasons))


def undone(results: Sequence[Status]) -> Done | Retriable | Transient:
    """Return Done if every rollback or release is Done or Skipped; else the failures as one.

    That is Transient if all are, with the longest retry_after. The reasons of a Done name what is not undone.
    """
    failures = [status for status in results if not isinstance(status, Done | Skipped)]
    named = failures or [status for status in results if status.reasons]
    reasons = tuple(f"{status.plugin}: {status.message or 'no reason given'}" for status in named)
    if not failures:
        return Done(reasons)
    # The poll interval of a wait is none of a repetition.
    pauses = [status.retry_after for status in failures if isinstance(status, Retriable | Transient)]
    kind = Transient if all(isinstance(status, Transient) for status in failures) else Retriable
    return kind(reasons, failures[0].plugin, retry_after=max(filter(None, pauses), default=None))


def is_word(text: str) -> bool:
    """Return whether the text may be a plugin's own reason."""
    return _WORD.fullmatch(text) is not None


def _wrong(field: str, expected: Any, value: Any) -> TypeError:
    return TypeError(f"{field} of a Status must be {expected}, not {value!r}")


_OK, _SKIP = Done(), Skipped()
# The result of an attempt that was withdrawn before its Binding.
WITHDRAWN = Cancelled(("the request was withdrawn",))
