"""Ends what plugins hold for bound pods: calls ``release`` when a pod has ended or is gone, until it returns OK.

The record is the BindRequest itself: one whose plugins have a ``release`` keeps Bowline's finalizer when it has
Succeeded, so neither its scheduler nor the garbage collector removes it before the release, whatever is down at that
time. Of all others nothing is kept, and nothing is watched unless an enabled plugin has a ``release``. Otherwise such
requests are listed once a term, because a plugin that was disabled since may hold some. The watches (of such
requests, and of pods that end) run on the leader only and only enqueue; a request is also looked at when a term
begins, and every RESYNC. While Bowline is uninstalled, a request whose pod runs is given up and reported: nothing
will be there when that pod ends. Decisions 282 and 167.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from bowline.api import names
from bowline.api.bindrequest import BindRequest, Phase, decode_bind_request, pod_uid_of
from bowline.api.meta import Object, ObjectKey, identity_of, is_deleting, key_of, status_of, uid_of
from bowline.framework.binding.runner import Runner
from bowline.framework.interface.status import Done
from bowline.kube.client import KubeClient
from bowline.kube.errors import KubeError
from bowline.kube.reflector import EventType, Listener, Reflector
from bowline.kube.resources import BINDREQUESTS, BOUND_AND_ENDED, PODS, Selection
from bowline.runtime.backoff import ItemBackoff
from bowline.runtime.logging import log_scope
from bowline.runtime.workers import DONE, ReconcileError, Result, run_workers
from bowline.runtime.workqueue import WorkQueue
from bowline_reconciler.decide.actions import Event
from bowline_reconciler.decide.report import unreleased_status
from bowline_reconciler.decide.snapshot import Absent, PodView, Snapshot, set_aside_for
from bowline_reconciler.drive.reads import Reads
from bowline_reconciler.drive.writer import Writer
from bowline_reconciler.watch.informers import Informers

log = logging.getLogger(__name__)

# A pod's end is an event; this finds the end of one that nobody reports, as of a request without an owner.
RESYNC = timedelta(minutes=10)
# Of a request that is deleting, the end of its pod by force is no event: the garbage collector has nothing to do.
DELETING_RESYNC = timedelta(minutes=1)
# A plugin whose backend hangs must not delay the releases of the others.
WORKERS = 8
_BACKOFF = (timedelta(seconds=1), timedelta(minutes=1))
_SUCCEEDED = "status.phase=Succeeded"


class Releases:
    """The releases. ``run`` it while leading.

    ``uninstalling``: the record is removed from requests of running pods too.
    """

    def __init__(
        self,
        client: KubeClient,
        informers: Informers,
        reads: Reads,
        writer: Writer,
        runner: Runner,
        *,
        uninstalling: bool = False,
    ) -> None:
        self._client = client
        self._informers = informers
        self._reads = reads
        self._writer = writer
        self._runner = runner
        self._uninstalling = uninstalling
        self._held: Mapping[ObjectKey, Object] = {}  # the requests that plugins hold something for
        self._queue: WorkQueue[ObjectKey] = WorkQueue(
            group=lambda key: key.namespace,
            workers=WORKERS,
            backoff=ItemBackoff(*_BACKOFF, random=client.random.random),
            is_open=False,
        )

    async def run(self) -> None:
        """Release until cancelled. Raises what has failed."""
        succeeded = Selection(BINDREQUESTS, field_selector=_SUCCEEDED, is_optional=True)
        requests = Reflector(
            self._client, succeeded, transform=transform_held, listener=Listener(self._request_event), fallback=True
        )
        # Also those of other schedulers: which pods are meant, the requests say.
        ended = Selection(PODS.as_metadata(), field_selector=BOUND_AND_ENDED, is_optional=True)
        pods = Reflector(self._client, ended, transform=self._pod_has_ended)
        self._held = requests.store
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(run_workers(self._queue, self._reconcile, self._on_error))
            watching = tasks.create_task(requests.run())
            if self._runner.may_hold:
                tasks.create_task(pods.run())
            else:
                await requests.synced.wait()
                watching.cancel()

    # --- watches ---

    def _request_event(self, _: EventType, key: ObjectKey, __: Object | None, new: Object | None) -> None:
        if new is not None:
            self._queue.add(key)

    def _pod_has_ended(self, pod: dict[str, Any]) -> Object | None:
        """Transform: enqueue the request of an ended pod, which has its name; and cache none."""
        key = key_of(pod)
        if key in self._held and self._held[key]["spec"]["podUID"] == uid_of(pod):
            self._queue.add(key)
        return None

    # --- one request ---

    async def _reconcile(self, key: ObjectKey) -> Result:
        with log_scope(bindRequest=str(key)):
            return await self._reconcile_held(key)

    async def _reconcile_held(self, key: ObjectKey) -> Result:
        """Release a request whose pod has ended. Raises ReconcileError to repeat it."""
        try:
            raw = await self._informers.get_request(key)
            if isinstance(raw, Absent) or transform_held(raw) is None:
                return DONE
            request = decode_bind_request(raw)
            if (left := set_aside_for(request, self._client.clock.now(), is_ending=True)) > timedelta():
                return Result(left)
            if request.is_misnamed or not self._runner.holders(request):
                log.warning("nothing is released: no enabled plugin holds anything, or the pod has another name")
                await self._writer.drop_finalizer(request)
                return DONE
            snapshot = await self._reads.with_live_pod(request)
            pod = snapshot.pod
            if isinstance(pod, PodView) and pod.uid != request.pod_uid:
                pod = Absent.NOT_FOUND
            is_running = pod is Absent.UNREADABLE or (not isinstance(pod, Absent) and not pod.has_ended)
            if not is_running:
                await self._release(replace(snapshot, pod=pod))
            elif self._uninstalling:
                await self._abandon(request)
            else:
                interval = DELETING_RESYNC if is_deleting(raw) else RESYNC
                return Result(interval * (1 + self._client.random.random()) / 2)
        except KubeError as error:
            log.debug("a release is repeated", extra={"error": str(error)})
            raise ReconcileError(str(error)) from error
        return DONE

    async def _release(self, snapshot: Snapshot) -> None:
        """Call the plugins, then drop the finalizer."""
        ctx, request = self._reads.context(snapshot, None), snapshot.request
        status = await self._runner.run_release(ctx)
        now = self._client.clock.now()
        if not isinstance(status, Done):
            if (report := unreleased_status(request, status.message, now)) != request.status:
                await self._writer.patch_status(request, report)
                event = Event("Warning", names.EVENT_RELEASE_FAILED, f"not released yet: {status.message}")
                self._writer.record_event(request, event, on_pod=False)
                log.warning("a release is not complete", extra={"why": status.message})
            raise ReconcileError(status.message, at_least=status.retry_after or timedelta())
        if request.is_rollback_incomplete and not request.deleting:
            request = await self._writer.patch_status(request, unreleased_status(request, "", now))
        await self._writer.drop_finalizer(request)
        if status.message:
            note = f"not all that the pod held is released: {status.message}"
            self._writer.record_event(request, Event("Warning", names.EVENT_NOT_RELEASED, note))
        log.info("released what the pod held", extra={"notReleased": status.message})

    async def _abandon(self, request: BindRequest) -> None:
        """Drop the finalizer of a running pod's request, and report what stays with the pod."""
        plugins = ", ".join(self._runner.holders(request))
        await self._writer.drop_finalizer(request)
        log.warning("not released: the pod runs", extra={"plugins": plugins})
        note = f"Bowline was uninstalled while the pod ran: {plugins} will not return what the pod holds"
        self._writer.record_event(request, Event("Warning", names.EVENT_NOT_RELEASED, note))

    def _on_error(self, key: ObjectKey) -> None:
        log.exception("release failed", extra={"bindRequest": str(key)})


def transform_held(request: dict[str, Any]) -> Object | None:
    """Transform: keep which pod a Succeeded request with the finalizer is for."""
    metadata = request["metadata"]
    is_held = names.FINALIZER in (metadata.get("finalizers") or ())
    if not is_held or status_of(request).get("phase") != Phase.SUCCEEDED.value:
        return None
    return {"metadata": identity_of(request), "spec": {"podUID": pod_uid_of(request)}}
