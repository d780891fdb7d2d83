"""Leader election on a coordination.k8s.io Lease, by client-go's rules.

Clocks of different machines are never compared. A standby measures with its own clock how long the record has not
changed, and takes over once that exceeds the holder's lease duration. The leader renews every retry period and, if it
could not for the renew deadline, stops leading before another process may start. Every write carries the
resourceVersion of the record it was decided on, so that of two concurrent writers one gets a Conflict.

Standbys watch the Lease in addition to polling it: a release is noticed immediately, a crash when the lease expires.
A Lease that is deleted may still have a holder that leads, whom this process need not have read. So a process that
has read the Lease, in whatever term, creates it again only after it was missing for the lease duration. One that has
read none leads at once, as after an install, and waits for the writes of a former holder.

A process that is restarted in its pod does not wait for the Lease of the process before it: kubelet starts a
container again only after its previous process has ended. The pod's UID in both identities proves it.

A holder that releases the Lease records with it whether all of its writes were answered: then the next one waits for
none of them (decision 10).

The Lease is owned by the holder's ServiceAccount: an uninstall deletes that together with the rights to release the
Lease, and the garbage collector then deletes the Lease. A Lease in the chart would fail an upgrade where one exists.
"""

import asyncio
import logging
import math
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bowline.api import names
from bowline.api.meta import (
    Object,
    ObjectKey,
    ResourceVersion,
    format_micro_time,
    is_older,
    key_of,
    parse_time,
    version_of,
)
from bowline.kube.client import KubeClient
from bowline.kube.errors import (
    AlreadyExists,
    Conflict,
    InfrastructureError,
    KubeError,
    NotFound,
    NotStoredError,
)
from bowline.kube.reflector import Listener, Reflector
from bowline.kube.resources import LEASES, SELF_SUBJECT_REVIEWS, Selection
from bowline.runtime.tasks import wait_until

log = logging.getLogger(__name__)

# As in client-go: standbys started together must not poll in step.
_POLL_JITTER = 1.2


# No decision depends on the clocks of two machines differing by less.
MAX_CLOCK_ERROR = timedelta(minutes=30)


@dataclass(frozen=True, slots=True)
class LeaseTimings:
    """``lease_duration`` > ``renew_deadline`` > ``retry_period``."""

    lease_duration: timedelta = timedelta(seconds=15)
    renew_deadline: timedelta = timedelta(seconds=10)
    retry_period: timedelta = timedelta(seconds=2)


def new_identity(environ: Mapping[str, str] = os.environ, pid: int | None = None) -> str:
    """Return an identity for one term: pod or host name, the pod's UID if it proves something, and a random UUID.

    The UID is included only for process 1 of a container (``pid``: of this process by default). Any other process of
    the pod, such as one that `kubectl exec` starts, runs beside process 1 and proves nothing about it.
    """
    is_first = (os.getpid() if pid is None else pid) == 1
    pod_uid = environ.get("POD_UID", "") if is_first else ""
    # Names of pods have no underscores; those of hosts may.
    name = environ.get("POD_NAME") or socket.gethostname().replace("_", "-")
    return "_".join(filter(None, (name, pod_uid, str(uuid.uuid4()))))


def is_earlier_term(holder: str, identity: str) -> bool:
    """Return whether ``holder`` is an earlier term of the container that ``identity`` leads for.

    Both have the same pod name and pod UID then. Terms of one process do not overlap, and neither do processes of one
    container.
    """
    container = identity.rpartition("_")[0]
    return "_" in container and holder != identity and holder.rpartition("_")[0] == container


def holder_of(lease: Object) -> str:
    """Return the holder's identity; empty if the Lease is free."""
    return (lease.get("spec") or {}).get("holderIdentity") or ""


def spec_of_holder(before: Object, identity: str, now: datetime, lease_duration: timedelta) -> dict[str, Any]:
    """Return the spec of a Lease that ``identity`` acquires or renews, given the previous spec."""
    mine = before.get("holderIdentity") == identity
    transitions = before.get("leaseTransitions") or 0
    return {
        "holderIdentity": identity,
        # Whole seconds, rounded up: standbys wait this long.
        "leaseDurationSeconds": math.ceil(lease_duration.total_seconds()),
        "acquireTime": before.get("acquireTime") if mine else format_micro_time(now),
        "renewTime": format_micro_time(now),
        "leaseTransitions": transitions if mine or not before else transitions + 1,
    }


def spec_without_holder(before: Object, now: datetime) -> dict[str, Any]:
    """Return the spec of a Lease that its holder releases."""
    return {
        **before,
        "holderIdentity": "",
        "leaseDurationSeconds": 1,
        "renewTime": format_micro_time(now),
    }


def may_have_left_writes(lease: Object, now: datetime, in_flight: timedelta) -> bool:
    """Return whether writes of the Lease's last holder may still take effect, ``in_flight`` after they were sent.

    Not those of a Lease that nobody has held, of a holder that has recorded with its release that its writes are
    answered, or of one that has not renewed it for longer than clocks differ.
    """
    renew_time = (lease.get("spec") or {}).get("renewTime")
    renewed_at = parse_time(renew_time)
    if holder_of(lease):
        return renewed_at is None or now - renewed_at <= in_flight + MAX_CLOCK_ERROR
    if renewed_at is None:
        return False
    answered = (lease["metadata"].get("annotations") or {}).get(names.WRITES_ANSWERED)
    return answered != renew_time and now - renewed_at <= in_flight + MAX_CLOCK_ERROR


def account_owners(user: Object, namespace: str) -> list[Object]:
    """Return owner references to the ServiceAccount that ``user`` is; none if it is none of the namespace.

    ``user``: the userInfo of a SelfSubjectReview. Owners of an object must be in its own namespace.
    """
    prefix = f"system:serviceaccount:{namespace}:"
    username, uid = user.get("username", ""), user.get("uid", "")
    if not uid or not username.startswith(prefix):
        return []
    return [{"apiVersion": "v1", "kind": "ServiceAccount", "name": username.removeprefix(prefix), "uid": uid}]


class StorageRestoredError(Exception):
    """The API server stores an older state than this process has read: its etcd was restored from a backup.

    Caches, and all else that was read before, describe a state that never was. A process that starts again knows
    nothing of it.
    """


class LeaseVersions:
    """The newest resourceVersion of the Lease that a process has read, for as long as it runs."""

    def __init__(self) -> None:
        self._newest = ResourceVersion("")

    def __bool__(self) -> bool:
        """Return whether the process has read a Lease."""
        return bool(self._newest)

    def check(self, lease: Object) -> None:
        """Record the version of a Lease that was read or written. Raises StorageRestoredError if it is older."""
        version = version_of(lease)
        if self._newest and is_older(version, self._newest):
            raise StorageRestoredError(
                f"Lease {key_of(lease)} has resourceVersion {version} after {self._newest}: etcd was restored"
            )
        self._newest = version


class LeaderElector:
    """Takes part in one election. ``is_leader`` is set while leading; ``lost`` after leadership ended
    involuntarily.
    """

    def __init__(
        self,
        client: KubeClient,
        lease: ObjectKey,
        identity: str,
        timings: LeaseTimings,
        versions: LeaseVersions,
        metadata: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._versions = versions
        client.ledger.inherits = True  # until the Lease shows otherwise
        self.identity = identity
        self.is_leader = asyncio.Event()
        self.lost = asyncio.Event()
        self.leader = ""  # as last observed
        self._client = client
        self._key = lease
        self._timings = timings
        # Labels and annotations that the Lease carries while this process holds it.
        self._metadata = metadata or {}
        self._owners: list[Object] = []  # until they are read
        self._lease: Object | None = None
        self._missing_since: float | None = None  # by the local monotonic clock
        # When the present record was first observed, by the local monotonic clock.
        self._seen_at = 0.0
        # When the write that last acquired or renewed the Lease was started, by the same clock. Not when it was
        # answered: the API server may have stored it immediately and replied late.
        self._renewed_at = 0.0
        self._wake = asyncio.Event()
        self._last_error = ""

    @property
    def left_s(self) -> float:
        """Seconds until another process may lead; 0 if one does, or may already."""
        if self.leader not in ("", self.identity):
            return 0.0
        lease_s = self._timings.lease_duration.total_seconds()
        return max(0.0, self._renewed_at + lease_s - self._client.clock.monotonic())

    async def run(self, stop: asyncio.Event) -> None:
        """Acquire, renew, and release on ``stop``. Returns when stopped or lost.

        A cancelled run does not release: no other process may lead until the lease expires.
        """
        selection = Selection(LEASES, self._key.namespace, field_selector=f"metadata.name={self._key.name}")
        watch = Reflector(self._client, selection, listener=Listener(lambda *_: self._wake.set()))
        async with asyncio.TaskGroup() as group:
            watching = group.create_task(watch.run(), name=f"lease {self._key}")
            waking = group.create_task(self._wake_on(stop), name=f"lease {self._key} stop")
            owners = group.create_task(self._read_owners(), name=f"lease {self._key} owner")
            try:
                await self._acquire(stop)
                if not stop.is_set():
                    self.is_leader.set()
                    self._client.metrics.leadership.labels("acquired").inc()
                    log.info("leading", extra={"lease": str(self._key), "identity": self.identity})
                    await self._renew_loop(stop)
            except StorageRestoredError:
                log.exception("exiting: nothing that was read before is valid")
                self.lost.set()
                raise
            finally:
                self.is_leader.clear()
                watching.cancel()
                waking.cancel()
                owners.cancel()

    async def _wake_on(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._wake.set()

    async def _acquire(self, stop: asyncio.Event) -> None:
        period = self._timings.retry_period.total_seconds()
        while not stop.is_set():
            self._wake.clear()
            if await self._try_acquire_or_renew(self._timings.renew_deadline.total_seconds()):
                return
            pause = period * (1 + self._client.random.random() * _POLL_JITTER)
            left_s = self._runs_out_in()
            # An expired one could not be taken just now: retry after the normal pause.
            if left_s > 0:
                pause = min(pause, max(left_s, 0.01))
            await wait_until(self._wake, timedelta(seconds=pause))

    async def _renew_loop(self, stop: asyncio.Event) -> None:
        clock = self._client.clock
        deadline_s = self._timings.renew_deadline.total_seconds()
        while True:
            # The renew deadline ends the wait even if the next retry is later.
            left_s = deadline_s - (clock.monotonic() - self._renewed_at)
            await wait_until(stop, min(self._timings.retry_period, timedelta(seconds=left_s)))
            if stop.is_set():
                self.is_leader.clear()
                await self._release()
                return
            left_s = deadline_s - (clock.monotonic() - self._renewed_at)
            # Half the time for one attempt: a hanging request leaves room for another.
            if left_s > 0 and await self._try_acquire_or_renew(min(left_s, deadline_s / 2)):
                continue
            if left_s <= 0 or self.leader not in ("", self.identity):
                self._client.metrics.leadership.labels("lost").inc()
                log.error("leadership lost", extra={"lease": str(self._key), "leader": self.leader})
                self.is_leader.clear()
                self.lost.set()
                return

    async def _try_acquire_or_renew(self, limit_s: float) -> bool:
        """Try once to acquire or renew the lease; return whether this process holds it."""
        try:
            async with asyncio.timeout(limit_s):
                is_held = await self._acquire_or_renew()
        except (KubeError, TimeoutError) as error:
            complaint = str(error) or "the API server did not answer in time"
            if complaint != self._last_error:
                log.warning("lease not renewed", extra={"lease": str(self._key), "error": complaint})
            self._last_error = complaint
            if isinstance(error, NotStoredError):  # what is stored may let another process lead at once
                self._renewed_at = self._client.clock.monotonic() - self._timings.lease_duration.total_seconds()
            return False
        self._last_error = ""
        return is_held

    async def _acquire_or_renew(self) -> bool:
        if self._lease is not None and holder_of(self._lease) == self.identity:
            try:
                # The cached record is almost certainly current: update without a read.
                await self._put(self._lease)
            except (Conflict, NotFound):
                self._lease = None
            else:
                return True
        try:
            lease = await self._client.get(LEASES, self._key.namespace, self._key.name)
        except NotFound:
            return self._may_create() and await self._create()
        self._observe(lease)
        if not self._is_free(holder_of(lease)):
            return False
        try:
            await self._put(lease)
        except Conflict:
            return False
        return True

    def _is_free(self, holder: str) -> bool:
        """Return whether this process may acquire or renew the observed record."""
        return holder in ("", self.identity) or is_earlier_term(holder, self.identity) or self._runs_out_in() <= 0

    def _may_create(self) -> bool:
        """Return whether no other process may lead, now that there is no Lease."""
        now = self._client.clock.monotonic()
        if self._missing_since is None:
            self._missing_since = now
        if not self._versions or (self.leader == self.identity and self.left_s > 0):
            return True
        return now - self._missing_since >= self._timings.lease_duration.total_seconds()

    async def _create(self) -> bool:
        key, now = {"name": self._key.name, "namespace": self._key.namespace}, self._client.clock.now()
        body = {
            "metadata": {**key, **self._metadata, "ownerReferences": self._owners},
            "spec": spec_of_holder({}, self.identity, now, self._timings.lease_duration),
        }
        started_at = self._client.clock.monotonic()
        try:
            essential = {"spec": body["spec"]}
            self._observe(await self._client.create(LEASES, self._key.namespace, body, essential=essential))
        except AlreadyExists:
            return False
        self._renewed_at = started_at
        self._client.ledger.inherits = True  # it may have been deleted, by hand or with the release's namespace
        return True

    async def _put(self, lease: Object) -> None:
        now = self._client.clock.now()
        spec = spec_of_holder(lease.get("spec") or {}, self.identity, now, self._timings.lease_duration)
        metadata: dict[str, Any] = dict(lease["metadata"])
        for kind, entries in self._metadata.items():
            metadata[kind] = {**(metadata.get(kind) or {}), **entries}
        if self._owners:
            metadata["ownerReferences"] = self._owners
        body = {**lease, "metadata": metadata, "spec": {**(lease.get("spec") or {}), **spec}}
        if holder_of(lease) != self.identity:
            self._client.ledger.inherits = may_have_left_writes(lease, now, self._client.ledger.limit)
        started_at = self._client.clock.monotonic()
        essential, (namespace, name) = {"spec": spec}, self._key
        self._observe(await self._client.update(LEASES, namespace, name, body, essential=essential))
        self._renewed_at = started_at

    async def _read_owners(self) -> None:
        """Read the Lease's owners, which the next write of the Lease sets. Leading never waits for this."""
        while True:
            try:
                review = await self._client.create(SELF_SUBJECT_REVIEWS, "", {})
            except InfrastructureError:
                await asyncio.sleep(self._timings.retry_period.total_seconds())
            except KubeError as error:
                log.warning("the lease will outlive an uninstall", extra={"error": str(error)})
                return
            else:
                self._owners = account_owners(review["status"]["userInfo"], self._key.namespace)
                return

    async def _release(self) -> None:
        if self._lease is None or holder_of(self._lease) != self.identity:
            return
        spec = spec_without_holder(self._lease["spec"], self._client.clock.now())
        body = {**self._lease, "spec": spec}
        if self._client.ledger.is_quiet:
            annotations = {**(body["metadata"].get("annotations") or {}), names.WRITES_ANSWERED: spec["renewTime"]}
            body["metadata"] = {**body["metadata"], "annotations": annotations}
        try:
            async with asyncio.timeout(self._timings.renew_deadline.total_seconds()):
                await self._client.update(LEASES, self._key.namespace, self._key.name, body)
        except (KubeError, TimeoutError) as error:
            log.warning("lease not released", extra={"lease": str(self._key), "error": str(error)})
        else:
            self._client.metrics.leadership.labels("released").inc()
            log.info("lease released", extra={"lease": str(self._key)})

    def _observe(self, lease: Object) -> None:
        self._versions.check(lease)
        if self._lease is None or lease.get("spec") != self._lease.get("spec"):
            self._seen_at = self._client.clock.monotonic()
        self._lease, self._missing_since = lease, None
        self.leader = holder_of(lease)

    def _runs_out_in(self) -> float:
        """Seconds until the observed record may be taken over."""
        spec = (self._lease or {}).get("spec") or {}
        return self._seen_at + (spec.get("leaseDurationSeconds") or 0) - self._client.clock.monotonic()
