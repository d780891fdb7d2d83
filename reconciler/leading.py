"""Leadership over time: a standby with warm stores, then the leader, then, if the Lease is lost, a standby again.

The Lease is released only after the work has stopped, so that two leaders never come of our own doing. Should they
overlap all the same, every write is guarded by UID or resourceVersion and none is done twice.
"""

import asyncio
import socket
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from reconciler.controller import Controller, Term
from reconciler.metrics import ReconcilerMetrics
from reconciler.reconciler import Reconciler
from reconciler.sleepers import Sleepers
from reconciler.stores import Stores
from reconciler.sweep import Sweep
from shared.api.meta import ObjectKey
from shared.framework.binding.lifecycle import PluginLifecycle
from shared.kube.client import KubeClient
from shared.kube.lease import LeaderElector, LeaseTimings


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
    """Work as long as this process leads and is not told to stop."""
    term = Term()
    work.metrics.leader.set(1)
    working: asyncio.Task[None] | None = None
    sweeping: asyncio.Task[None] | None = None
    try:
        await work.plugins.start()
        sweeping = asyncio.create_task(work.sweep.run(), name="sweep")
        working = asyncio.create_task(
            work.controller.lead(work.reconciler, work.stores, work.sleepers, term), name="controller"
        )
        await first_of(elector.lost.wait(), stop.wait(), end_of(working), _failure_of(sweeping))
    finally:
        if elector.lost.is_set():
            # Not told to stop but unable to renew: everything must be over before somebody else may lead.
            term.drain = min(term.drain, timings.lease_duration - timings.renew_deadline)
        term.over.set()
        if working is not None:
            await working
        if sweeping is not None:
            await _ended(sweeping)
        await work.plugins.stop()
        work.metrics.leader.set(0)


async def _failure_of(task: "asyncio.Task[None]") -> None:
    """Wait until the task fails; its regular end is nothing to stop for."""
    await asyncio.wait({task})
    if task.exception() is None:
        await asyncio.Event().wait()


async def _ended(task: "asyncio.Task[None]") -> None:
    """End a task of ours. Raises what it raised."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.result()


async def first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Return when the first of them is over; the others are cancelled."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def end_of(task: "asyncio.Task[None]") -> None:
    """Wait for a task's end without a say in it."""
    await asyncio.wait({task})
