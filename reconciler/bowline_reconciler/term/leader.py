"""Leadership over time: a standby with synced caches, then the leader; if the Lease is lost, a standby again.

A term begins when the Lease is held and every watch, also of plugins, has been listed. It ends on shutdown or when
the Lease is lost; in any case the drain ends before another process may lead, and then the client rejects every write
except to Leases and events. The Lease is released only after all work has stopped. If two leaders overlap
nevertheless, every write has a UID or resourceVersion precondition, so none is applied twice. Decisions 120 and 318.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from bowline.api import names
from bowline.api.meta import ObjectKey
from bowline.framework.binding.calls import PluginCall
from bowline.kube.client import ClientOptions
from bowline.kube.config import ClusterAccess
from bowline.kube.lease import LeaderElector, LeaseTimings, LeaseVersions
from bowline.runtime.tasks import cancel_and_wait, wait_done, wait_first
from bowline.runtime.watchdog import EventLoopWatchdog
from bowline.runtime.workers import wait_failed
from bowline_reconciler.drive.hand_over import hand_over
from bowline_reconciler.term.controller import Term
from bowline_reconciler.term.wiring import Components

# The last write has this long to reach the API server before another process may lead.
_MARGIN_S = 1.0
LEASE_METADATA = {"labels": {names.LEASE_LABEL: "cluster"}}


class Leadership:
    """Which process leads, as this one last observed it. ``lease``: the Lease of the election.

    ``new_identity`` returns another identity for each term. Owns the elector of the present term, or of the wait for
    one.
    """

    def __init__(self, lease: ObjectKey, new_identity: Callable[[], str]) -> None:
        self.lease = lease
        self._new_identity = new_identity
        self._elector: LeaderElector | None = None
        self._versions = LeaseVersions()

    @property
    def leader(self) -> str:
        """The identity of the leader; empty if there is none, or none was observed yet."""
        return self._elector.leader if self._elector is not None else ""

    @property
    def identity(self) -> str:
        """This process's identity in the Lease that it holds; empty if it holds none. From any thread."""
        elector = self._elector
        return elector.identity if elector is not None and elector.is_leader.is_set() else ""

    def elector(self, parts: Components, timings: LeaseTimings) -> LeaderElector:
        """Return the elector of the next term."""
        identity = self._new_identity()
        self._elector = LeaderElector(parts.client, self.lease, identity, timings, self._versions, LEASE_METADATA)
        return self._elector


async def run_while_leader(
    leadership: Leadership,
    timings: LeaseTimings,
    parts: Components,
    stop: asyncio.Event,
    on_synced: Callable[[], None] = lambda: None,
) -> None:
    """Take part in the leader election and work during each term, until ``stop``. Raises the error of what failed.

    ``on_synced`` is called once, when every watch has been listed. Before that the process does not try to acquire
    the Lease.
    """
    await wait_first(parts.wait_for_sync(), stop.wait())
    on_synced()
    while not stop.is_set():
        elector = leadership.elector(parts, timings)
        release = asyncio.Event()
        electing = asyncio.create_task(elector.run(release), name="leader election")
        try:
            await wait_first(elector.is_leader.wait(), stop.wait(), wait_done(electing))
            if elector.is_leader.is_set() and not stop.is_set():
                await _lead(parts, elector, stop)
        finally:
            release.set()
            await electing


async def _lead(parts: Components, elector: LeaderElector, stop: asyncio.Event) -> None:
    """Work until the Lease is lost or ``stop`` is set. Raises the error of a component that failed."""
    parts.observation.metrics.leader.set(1)
    parts.client.ledger.permit(lambda: elector.left_s - _MARGIN_S)
    term = Term()
    # The callbacks run in reverse order: first the workers drain, then their dependencies stop; a failing callback
    # does not skip the others. At the end the client is read-only, whatever a plugin has left running.
    async with AsyncExitStack() as ending:
        ending.callback(parts.observation.metrics.leader.set, 0)
        ending.callback(parts.client.ledger.forbid)
        fencing = asyncio.create_task(_fence(parts, elector, term), name="fence")
        ending.push_async_callback(cancel_and_wait, fencing)
        ending.push_async_callback(parts.plugins.stop)
        await parts.plugins.start()
        beside = {
            "TTL controller": parts.ttl.run(),
            "releases": parts.releases.run(),
            "pod conditions": parts.memory.conditions.run(),
            "progress": parts.progress.run(),
        }
        tasks = [asyncio.create_task(run, name=name) for name, run in beside.items()]
        for task in tasks:
            ending.push_async_callback(cancel_and_wait, task)
        working = asyncio.create_task(parts.controller.lead(term), name="controller")
        ending.push_async_callback(_drain, working, term)
        await wait_first(
            elector.lost.wait(),
            stop.wait(),
            wait_done(working),
            wait_failed(tasks),
            parts.plugins.failure(),
        )


async def _fence(parts: Components, elector: LeaderElector, term: Term) -> None:
    """After the Lease is lost: end the drain, all writes and plugins' work before another process may lead."""
    await elector.lost.wait()
    await asyncio.sleep(max(0.0, elector.left_s - _MARGIN_S))
    term.expiry.set()
    parts.client.ledger.forbid()
    parts.plugins.cancel()


def new_watchdog(parts: Components, access: ClusterAccess, leadership: Leadership) -> EventLoopWatchdog[PluginCall]:
    """Return the watchdog of the event loop that the components run in."""

    async def fence_and_hand_over(call: PluginCall, why: str) -> None:
        parts.client.ledger.forbid()
        options = ClientOptions(names.FIELD_MANAGER_RECONCILER)
        await hand_over(access, options, leadership.lease, call, why, leadership.identity)

    def current(loop: asyncio.AbstractEventLoop) -> PluginCall | None:
        return parts.calls.current(loop) or parts.plugins.current(loop)

    return EventLoopWatchdog(current, parts.observation.metrics.plugin_errors, fence_and_hand_over)


async def _drain(working: "asyncio.Task[None]", term: Term) -> None:
    """End the term and wait until the workers have stopped. Raises their error."""
    term.end_event.set()
    await working
