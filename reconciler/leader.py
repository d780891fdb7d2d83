"""Leadership over time: a standby with warm stores, then the leader, then, if the Lease is lost, a standby again.

The Lease is released only after the work has stopped, so that two leaders never come of our own doing. Should they
overlap all the same, every write is guarded by UID or resourceVersion and none is done twice.
"""

import asyncio
import socket
import uuid
from contextlib import AsyncExitStack
from dataclasses import dataclass

from reconciler.binding.wait_index import Sleepers
from reconciler.controller import Controller, Term
from reconciler.informers import Stores
from reconciler.observe.metrics import ReconcilerMetrics
from reconciler.reconciler import Reconciler
from reconciler.ttl import Sweep
from shared.api.meta import ObjectKey
from shared.framework.binding.lifecycle import PluginLifecycle
from shared.kube.client import KubeClient
from shared.kube.lease import LeaderElector, LeaseTimings
from shared.runtime.tasks import end, end_of, first_of
from shared.runtime.workers import first_failure


@dataclass(frozen=True, slots=True)
class Work:
    """What is started and stopped with leadership."""

    controller: Controller
    reconciler: Reconciler
    plugins: PluginLifecycle
    stores: Stores
    sleepers: Sleepers
    sweep: Sweep
    metrics: ReconcilerMetrics


async def lead(client: KubeClient, lease: ObjectKey, timings: LeaseTimings, work: Work, stop: asyncio.Event) -> None:
    """Seek leadership and work while it lasts, until ``stop``. Raises what a plugin's start raises.

    Whoever has nothing in its stores yet leaves the Lease to those who have.
    """
    await first_of(work.stores.listed(), stop.wait())
    while not stop.is_set():
        elector = LeaderElector(client, lease, f"{socket.gethostname()}_{uuid.uuid4()}", timings)
        release = asyncio.Event()
        electing = asyncio.create_task(elector.run(release), name="leader election")
        try:
            await first_of(elector.is_leader.wait(), stop.wait(), end_of(electing))
            if elector.is_leader.is_set() and not stop.is_set():
                await _lead(work, elector, timings, stop)
        finally:
            release.set()
            await electing


async def _lead(work: Work, elector: LeaderElector, timings: LeaseTimings, stop: asyncio.Event) -> None:
    """Work as long as this process leads and is not told to stop. Raises what a part of the work fails with."""
    work.metrics.leader.set(1)
    # Backwards: first the passes come to their end, then what they use is stopped; one that fails keeps none from it.
    async with AsyncExitStack() as ending:
        ending.callback(work.metrics.leader.set, 0)
        ending.push_async_callback(work.plugins.stop)
        await work.plugins.start()
        sweeping = asyncio.create_task(work.sweep.run(), name="sweep")
        ending.push_async_callback(end, sweeping)
        term = Term()
        working = asyncio.create_task(
            work.controller.lead(work.reconciler, work.stores, work.sleepers, term), name="controller"
        )
        ending.push_async_callback(_drained, working, term, elector, timings)
        await first_of(
            elector.lost.wait(), stop.wait(), end_of(working), first_failure([sweeping]), work.plugins.failure()
        )


async def _drained(working: "asyncio.Task[None]", term: Term, elector: LeaderElector, timings: LeaseTimings) -> None:
    """End the term and wait for the work's end. Raises what it raised."""
    if elector.lost.is_set():
        # Not told to stop but unable to renew: everything must be over before somebody else may lead.
        term.drain = min(term.drain, timings.lease_duration - timings.renew_deadline)
    term.over.set()
    await working
