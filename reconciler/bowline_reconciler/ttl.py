"""The TTL controller: deletes finished BindRequests that no client needs, slowly, page by page, on the leader.

A Succeeded request is kept for the TTL. One with several GPU groups is kept until its pod is deleted: existing
schedulers read from it which devices the running pod occupies. A Failed request is for the scheduler to read, and is
garbage-collected with its owner, the pod; deleted here are those without an owner, after the TTL, and those that
several newer ones of the same pod have superseded. One whose owner was removed, as by `kubectl delete pod
--cascade=orphan`, is deleted once its pod is gone: the garbage collector never does, and the next pod of that name
would find its request taken. Deletes have UID and resourceVersion preconditions, so a request that was replaced or
written meanwhile is kept. An error or a restart in the middle of a round loses nothing: the next round finds what is
due. Decisions 94 and 118.
"""

import asyncio
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta

from bowline.api.bindrequest import Phase, gpu_groups_of, owner_pod_uid, pod_uid_of
from bowline.api.meta import Object, ObjectKey, key_of, parse_time, status_of, uid_of, version_of
from bowline.kube.client import KubeClient
from bowline.kube.errors import ApiError, BadRequest, Conflict, Expired, InfrastructureError, NotFound
from bowline.kube.reflector import rejects_fields
from bowline.kube.resources import BINDREQUESTS, PODS
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
# A tenth of the TTL, within these bounds; sooner where rounds are short, so that they take a fiftieth of the time.
ROUND_MIN, ROUND_SOON, ROUND_MAX = timedelta(seconds=1), timedelta(seconds=30), timedelta(minutes=5)
_SHARE_OF_TIME = 50
# The newest Failed requests of a pod are kept; a scheduler that names each request differently leaves one per
# decision.
KEPT_FAILED = 3
# Never delete a newer one: its scheduler may not have read it yet.
UNREAD = timedelta(minutes=1)
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


def is_without_owner(request: Object, now: datetime) -> bool:
    """Return whether a finished request has lost its owner, so that it outlives its pod.

    A Failed one that never had an owner reports that its pod does not exist, and is kept for the TTL.
    """
    metadata = request["metadata"]
    if any(metadata.get(field) for field in ("ownerReferences", "finalizers", "deletionTimestamp")):
        return False
    phase, completion = status_of(request).get("phase"), completed_at(request)
    is_of_pod = phase == Phase.SUCCEEDED.value or (phase == Phase.FAILED.value and pod_uid_of(request))
    has_name = bool((request.get("spec") or {}).get("podName"))
    return bool(is_of_pod and has_name and completion is not None and completion <= now - UNREAD)


def is_another(pod: Object, request: Object) -> bool:
    """Return whether the pod is not the one that the finished request was for."""
    uid, completion = pod_uid_of(request), completed_at(request)
    creation = parse_time(pod["metadata"].get("creationTimestamp"))
    return uid_of(pod) != uid if uid else creation is not None and completion is not None and creation > completion


def _has_several_groups(request: Object) -> bool:
    return len(gpu_groups_of(request.get("spec"))) > 1


class Superseded:
    """Finds a pod's Failed requests beyond the newest KEPT_FAILED.

    Requests are added one at a time, in any order; one that is added again, as after an error in the middle of a
    page, counts once. Stored times have whole seconds, so requests of one second are ordered by name.
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[str, str], dict[str, tuple[datetime, str, Object]]] = {}

    def add(self, request: Object, now: datetime) -> Object | None:
        """Add a request; returns the oldest one of its pod if newer ones have superseded it, or None."""
        metadata, pod = request["metadata"], owner_pod_uid(request)
        completion = completed_at(request)
        if not pod or completion is None or metadata.get("finalizers") or metadata.get("deletionTimestamp"):
            return None
        if status_of(request).get("phase") != Phase.FAILED.value:
            return None
        identity = {name: metadata.get(name) for name in ("name", "namespace", "uid", "resourceVersion")}
        newest = self._newest.setdefault((key_of(request).namespace, pod), {})
        newest[uid_of(request)] = completion, metadata["name"], {"metadata": identity}
        if len(newest) <= KEPT_FAILED:
            return None
        completion, _, oldest = newest.pop(min(newest, key=lambda uid: newest[uid][:2]))
        return oldest if completion <= now - UNREAD else None


class TTLController:
    """Deletes finished requests in rounds. ``run`` it while leading.

    A ``ttl`` of zero keeps all of them but those that have lost their owner, which no setting gives back.
    """

    def __init__(self, client: KubeClient, ttl: timedelta, clock: Clock, page: int = PAGE) -> None:
        self._client = client
        self._ttl = ttl
        self._clock = clock
        self._page_size = page
        self._selectors: Sequence[str] = _FINISHED
        # Position of an interrupted round: the selector, and the continue token.
        self._selector_index = 0
        self._continue = ""
        self._failed_requests = Superseded()

    async def run(self) -> None:
        """Run rounds until cancelled."""
        backoff = Backoff(ERROR_BASE, ERROR_MAX, self._client.random.random)
        while True:
            began = self._clock.monotonic()
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
            took = timedelta(seconds=self._clock.monotonic() - began)
            share = self._ttl / 10 if self._ttl else ROUND_MAX
            pause = min(max(share, ROUND_MIN), max(ROUND_SOON, took * _SHARE_OF_TIME), ROUND_MAX)
            await asyncio.sleep(pause.total_seconds())

    async def round(self) -> int:
        """Process all finished requests once, from an interruption on; return how many were deleted.

        Raises the client's errors, except that of a delete which is denied: it is logged at the end, stops no other
        one, and is tried again in the next round.
        """
        removals, denials = 0, []
        while True:
            page = await self._page()
            for request in page["items"] or ():
                now = self._clock.now()
                candidate = self._candidate(request, now) if self._ttl else None
                if candidate is None and is_without_owner(request, now) and await self._has_lost_pod(request):
                    candidate = request
                if candidate is not None:
                    try:
                        removals += await self.remove(candidate)
                    except ApiError as error:
                        denials.append(str(error))
                    await asyncio.sleep(1 / DELETES_PER_S)
            self._continue = page["metadata"].get("continue") or ""
            if not self._continue:
                self._selector_index = (self._selector_index + 1) % len(self._selectors)
                if not self._selector_index:
                    if denials:
                        fields = {"count": len(denials), "error": denials[-1]}
                        log.warning("finished requests are not removed: denied", extra=fields)
                    return removals

    def _candidate(self, request: Object, now: datetime) -> Object | None:
        """Return which request the TTL or newer ones have made superfluous, given one more; None if none."""
        return request if is_due(request, self._ttl, now) else self._failed_requests.add(request, now)

    async def remove(self, request: Object) -> bool:
        """Delete the request if it is unchanged; return whether it was deleted."""
        key = key_of(request)
        uid, version = uid_of(request), version_of(request)
        try:
            await self._client.delete(BINDREQUESTS, key.namespace, key.name, uid=uid, resource_version=version)
        except (Conflict, NotFound):
            return False
        return True

    async def _has_lost_pod(self, request: Object) -> bool:
        pod = ObjectKey(key_of(request).namespace, request["spec"]["podName"])
        try:
            return is_another(await self._client.get(PODS.as_metadata(), pod.namespace, pod.name), request)
        except NotFound:
            return True

    async def _page(self) -> Object:
        if not self._continue:
            self._failed_requests = Superseded()
        try:
            return await self._client.list(
                BINDREQUESTS,
                field_selector=self._selectors[self._selector_index],
                limit=self._page_size,
                continue_=self._continue,
            )
        except Expired:
            # Continue tokens expire after some minutes.
            self._continue = ""
        except BadRequest as error:
            if self._selectors == _ALL or not rejects_fields(error):
                # Possibly another API server's token.
                self._continue = ""
                raise
            self._selectors, self._selector_index, self._continue = _ALL, 0, ""
        return await self._page()
