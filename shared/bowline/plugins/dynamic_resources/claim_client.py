"""Reads and writes ResourceClaims: executes the writes that ``rules`` derives, each with a precondition.

Every update or patch carries the resourceVersion of the claim it was derived from, a delete its UID as well; after a
Conflict the claim is read and evaluated again. A lock per claim serialises this process's attempts, because
concurrent ones would only cause Conflicts; the lock is held during API calls only, never during a wait for devices.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from bowline.api.meta import Object, ObjectKey, is_deleting, key_of, status_of, uid_of, version_of
from bowline.framework.interface.status import Status, Transient
from bowline.kube.accounting import turn_at
from bowline.kube.errors import AlreadyExists, ApiError, Conflict, NotFound, NotStoredError, UnrecognizedReply
from bowline.kube.object_client import ObjectClient
from bowline.kube.resources import RESOURCECLAIMS
from bowline.plugins.dynamic_resources.rules import (
    ClaimStatus,
    Delete,
    Finalizers,
    RequiredClaim,
    Write,
    has_failed_device,
    is_of_group_alone,
    missing_claim,
    next_release,
    next_removal,
    next_reservation,
    unprotection,
)
from bowline.runtime.tasks import shield_write

# In a row: a step needs one to three, and drivers and the claim controller rarely write to a claim at the same time.
MAX_WRITES = 8

# Whether another pod of the PodGroup may have the claim's devices; given whether one of these has failed.
IsGroupUsed = Callable[[bool], Awaitable[bool]]


class ClaimsNotServedError(Exception):
    """The API server does not serve resource claims."""


class ClaimClient:
    """Client for ResourceClaims. Methods raise the client's errors except Conflict; also NotStoredError."""

    def __init__(self, client: ObjectClient, bind_timeout: timedelta) -> None:
        self._client = client
        self._bind_timeout = bind_timeout
        self._locks: WeakValueDictionary[ObjectKey, asyncio.Lock] = WeakValueDictionary()

    async def get(self, key: ObjectKey) -> Object | None:
        """Return the claim; None if it does not exist. Raises ClaimsNotServedError."""
        try:
            return await self._client.get(RESOURCECLAIMS, key.namespace, key.name)
        except NotFound:
            return None
        except (ApiError, UnrecognizedReply) as error:
            if error.code == 404 and not await self._client.serves(RESOURCECLAIMS):
                raise ClaimsNotServedError from error
            raise

    async def reserve(self, claim: Object, requirement: RequiredClaim) -> Status:
        """Reserve the claim for its consumer; returns the status of its devices."""
        async with self._turn(requirement.key) as was_locked:
            # The previous lock holder has written: the claim passed in is stale. So may be one of a PodGroup, which
            # another pod's rollback frees unless this request is in its list.
            is_stale = was_locked or requirement.is_shared
            current = await self.get(requirement.key) if is_stale else claim
            answer = await self._execute(
                requirement,
                current,
                lambda latest: next_reservation(latest, requirement, self._client.clock.now(), self._bind_timeout),
            )
        return missing_claim(requirement) if answer is None else answer

    async def release(self, requirement: RequiredClaim, is_group_used: IsGroupUsed) -> Status:
        """Undo ``reserve`` for a pod that is not bound.

        ``is_group_used`` is asked about a claim of a PodGroup once no other attempt of this process can reserve it.
        """
        async with self._turn(requirement.key):
            current = await self.get(requirement.key)
            is_used = (
                current is None
                or not is_of_group_alone(current, requirement)
                or await is_group_used(has_failed_device(current))
            )
            answer = await self._execute(
                requirement,
                current,
                lambda latest: next_release(latest, requirement, is_group_used=is_used) or Status.ok(),
            )
        return Status.ok() if answer is None else answer

    async def create(self, claim: dict[str, Any]) -> Object | None:
        """Create a claim, or return the existing one of that name; None if that one was deleted meanwhile."""
        namespace, name = claim["metadata"]["namespace"], claim["metadata"]["name"]
        try:
            return await shield_write(self._create(claim))
        except AlreadyExists:
            return await self.get(ObjectKey(namespace, name))

    async def _create(self, claim: dict[str, Any]) -> dict[str, Any]:
        try:
            return await self._client.create(RESOURCECLAIMS, claim["metadata"]["namespace"], claim, essential=claim)
        except NotStoredError as error:
            # The client has deleted it; what it was stored as may not show that it is this plugin's.
            deleted = await self.get(key_of(error.stored))
            step = unprotection(deleted) if deleted is not None and is_deleting(deleted) else None
            if deleted is not None and step is not None:
                await self._write(deleted, step)
            raise

    async def remove(self, requirement: RequiredClaim) -> Status:
        """Delete a claim created for the pod, then remove the finalizer that blocks its deletion."""
        async with self._turn(requirement.key):
            current = await self.get(requirement.key)
            answer = await self._execute(requirement, current, lambda latest: next_removal(latest, requirement))
        return Status.ok() if answer is None else answer

    async def _execute(
        self, requirement: RequiredClaim, claim: Object | None, next_of: Callable[[Object], Write | Status]
    ) -> Status | None:
        """Write until ``next_of`` returns a Status, which is returned; None if the claim does not exist any more."""
        for _ in range(MAX_WRITES):
            if claim is None:
                return None
            step = next_of(claim)
            if isinstance(step, Status):
                return step
            try:
                claim = await shield_write(self._write(claim, step))
            except (Conflict, NotFound):
                claim = await self.get(requirement.key)
        return contention_status(requirement)

    async def _write(self, claim: Object, write: Write) -> Object | None:
        """Write; returns the claim as stored, None if it is deleted."""
        metadata = claim["metadata"]
        namespace, name = metadata["namespace"], metadata["name"]
        match write:
            case Finalizers(finalizers):
                patch = {"metadata": {"resourceVersion": version_of(claim), "finalizers": list(finalizers)}}
                return await self._client.patch(RESOURCECLAIMS, namespace, name, patch, essential=patch)
            case ClaimStatus(status):
                # Not a patch: a merge patch would drop a null in a driver's opaque parameters.
                body = {**claim, "status": status}
                allocation = status.get("allocation")
                if allocation is not None:
                    # The time is kept by API servers with binding conditions only.
                    allocation = {key: value for key, value in allocation.items() if key != "allocationTimestamp"}
                essential = {"status": {"allocation": allocation, "reservedFor": status.get("reservedFor")}}
                update = partial(self._client.update, RESOURCECLAIMS, namespace, name, subresource="status")
                try:
                    updated_claim = await update(body, essential=essential)
                except NotStoredError as error:
                    await update({**error.stored, "status": status_of(claim)})
                    raise
                return updated_claim
            case Delete():
                left = await self._client.delete(
                    RESOURCECLAIMS, namespace, name, uid=uid_of(claim), resource_version=version_of(claim)
                )
                return left if left.get("kind") == RESOURCECLAIMS.kind else None

    @asynccontextmanager
    async def _turn(self, key: ObjectKey) -> AsyncIterator[bool]:
        """Wait for the calls of others for the claim; yields whether there were any."""
        lock = self._locks.setdefault(key, asyncio.Lock())
        was_locked = lock.locked()
        async with turn_at(lock):
            yield was_locked


def contention_status(requirement: RequiredClaim) -> Status:
    """Return the status for a claim that other writers keep changing: transient, not counted as an attempt."""
    why = f"{requirement.label} is changed too often by other writers, or a policy undoes the change"
    return Transient((why,))
