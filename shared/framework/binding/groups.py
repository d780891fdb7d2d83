"""Grouping of pre_bind calls for parallel execution, and merging of several results. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from shared.framework.plugin import Plugin, Preflight
from shared.framework.status import Code, Status


@dataclass(frozen=True, slots=True)
class Group:
    """Plugins whose pre_bind runs concurrently."""

    plugins: tuple[Plugin, ...]


def pre_bind_groups(answers: Sequence[tuple[Plugin, Preflight]]) -> tuple[Group, ...]:
    """Split into groups: consecutive parallel plugins run together, any other alone.

    A skipped plugin is in no group, but still separates its neighbours unless it is parallel itself.
    """
    groups: list[list[Plugin]] = []
    open_group = False
    for plugin, answer in answers:
        if not answer.parallel:
            open_group = False
        if answer.run:
            if open_group:
                groups[-1].append(plugin)
            else:
                groups.append([plugin])
            open_group = answer.parallel
    return tuple(Group(tuple(group)) for group in groups)


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
        plugin=",".join(status.plugin for status in waits),
        retry_after=min((status.retry_after for status in waits if status.retry_after), default=None),
        wake_on=tuple(ref for status in waits for ref in status.wake_on),
        timeout=by_timeout[0].timeout,
        suggestion=next((status.suggestion for status in by_timeout if status.suggestion), None),
    )


def merge_failures(failures: Sequence[Status]) -> Status:
    """Merge several failures: all their reasons, the longest retry_after; TRANSIENT if all are, else RETRY."""
    code = Code.TRANSIENT if all(status.code is Code.TRANSIENT for status in failures) else Code.RETRY
    return Status(
        code,
        tuple(f"{status.plugin}: {status.message}" for status in failures),
        plugin=failures[0].plugin,
        retry_after=max((status.retry_after for status in failures if status.retry_after), default=None),
    )
