"""The TTL controller: deletes finished BindRequests that no client needs, slowly, page by page, on the leader.

A Succeeded request is kept for the TTL. One with several GPU groups is kept until its pod is deleted: existing
schedulers read from it which devices the running pod occupies. A Failed request is for the scheduler to read, and is
garbage-collected with its owner, the pod; deleted here are those without an owner, after the TTL. Deletes have UID
and resourceVersion preconditions, so a request that was replaced or written meanwhile is kept. An error or a restart
in the middle of a round loses nothing: the next round finds what is due.
"""

import asyncio
import logging
from datetime import datetime, timedelta

from bowline.api.bindrequest import Phase, gpu_groups_of, owner_pod_uid
from bowline.api.meta import Object, key_of, parse_time, status_of, uid_of, version_of
from bowline.kube.client import KubeClient
from bowline.kube.errors import ApiError, Conflict, InfrastructureError, NoResponse, NotFound, ServerError
from bowline.kube.reflector import rejects_fields
from bowline.kube.resources import BINDREQUESTS, Selection
from bowline.runtime.backoff import Backoff
from bowline.runtime.clock import Clock

log = logging.getLogger(__name__)

# One list after the other: field selectors have no "or".
_FINISHED = tuple(f"status.phase={phase.value}" for phase in (Phase.SUCCEEDED, Phase.FAILED))
# For another project's CRD, which has no selectable fields.
_ALL = ("",)
PAGE = 50
# Too few to affect binding, and enough for 36,000 an hour.
DELETES_PER_S = 10.0
# Between rounds: a tenth of the TTL, within these bounds.
ROUND_MIN, ROUND_MAX = timedelta(seconds=1), timedelta(minutes=5)
ERROR_BASE, ERROR_MAX = timedelta(seconds=1), timedelta(minutes=1)


def completed_at(request: Object) -> datetime | None:
    """Return when the request became final; None if that is unknown, and then it is kept.

    Another project's CRD does not store completionTime; the time of the object's newest write is used instead.
    """
    completion = parse_time(status_of(request).get("completionTime"))
    if completion is not None:
        return completion
    writes = (parse_time(entry.get("time")) for entry in request["metadata"].get("managedFields") or ())
    return max((write for write in writes if write is not None), default=None)


def is_due(request: Object, ttl: timedelta, now: datetime) -> bool:
    """Return whether a request ended long enough ago, and neither its owner nor another client needs it."""
    metadata = request["metadata"]
    phase = status_of(request).get("phase")
    if phase != Phase.SUCCEEDED.value and (phase != Phase.FAILED.value or metadata.get("ownerReferences")):
        return False
    if phase == Phase.SUCCEEDED.value and owner_pod_uid(request) and _has_several_groups(request):
        return False
    if metadata.get("finalizers") or metadata.get("deletionTimestamp"):
        return False
    completion = completed_at(request)
    return completion is not None and completion <= now - ttl


def _has_several_groups(request: Object) -> bool:
    return len(gpu_groups_of(request.get("spec"))) > 1


class TTLController:
    """Deletes finished requests in rounds. ``run`` it while leading. A ``ttl`` of zero keeps all of them."""

    def __init__(self, client: KubeClient, ttl: timedelta, clock: Clock, page: int = PAGE) -> None:
        self._client = client
        self._ttl = ttl
        self._clock = clock
        self._page_size = page
        self._selectors = _FINISHED

    async def run(self) -> None:
        """Run rounds until cancelled."""
        if not self._ttl:
            return
        backoff = Backoff(ERROR_BASE, ERROR_MAX, self._client.random.random)
        while True:
            try:
                removals = await self.round()
            except (ApiError, InfrastructureError) as error:
                retry_after = error.retry_after if isinstance(error, InfrastructureError) else None
                log.warning("finished requests are not removed", extra={"error": str(error)})
                await asyncio.sleep(backoff.next_delay(retry_after or ERROR_BASE).total_seconds())
                continue
            backoff.reset()
            if removals:
                log.info("finished requests removed", extra={"count": removals})
            await asyncio.sleep(min(max(self._ttl / 10, ROUND_MIN), ROUND_MAX).total_seconds())

    async def round(self) -> int:
        """Process all finished requests once; return how many were deleted.

        Raises the client's errors, except that of a delete which is denied, or which fails for its namespace, as
        while a webhook is down: it is logged, stops no other one, and is tried again in the next round.
        """
        try:
            return sum([await self._remove_selected(selector) for selector in self._selectors])
        except ApiError as error:
            if self._selectors == _ALL or not rejects_fields(error):
                raise
            self._selectors = _ALL
            return await self.round()

    async def _remove_selected(self, selector: str) -> int:
        removals, failures = 0, []
        failing_namespaces: set[str] = set()
        async for page in self._client.pages(Selection(BINDREQUESTS, field_selector=selector), self._page_size):
            for request in page["items"] or ():
                namespace = key_of(request).namespace
                if namespace in failing_namespaces or not is_due(request, self._ttl, self._clock.now()):
                    continue
                try:
                    removals += await self.remove(request)
                except ApiError as error:
                    failures.append(str(error))
                except (ServerError, NoResponse) as error:
                    if error.retry_after is not None:
                        raise
                    failing_namespaces.add(namespace)
                    failures.append(str(error))
                await asyncio.sleep(1 / DELETES_PER_S)
        if failures:
            fields = {"count": len(failures), "error": failures[-1]}
            log.warning("finished requests are not removed: denied, or without an answer", extra=fields)
        return removals

    async def remove(self, request: Object) -> bool:
        """Delete the request if it is unchanged; return whether it was deleted."""
        key = key_of(request)
        uid, version = uid_of(request), version_of(request)
        try:
            await self._client.delete(BINDREQUESTS, key.namespace, key.name, uid=uid, resource_version=version)
        except (Conflict, NotFound):
            return False
        return True
