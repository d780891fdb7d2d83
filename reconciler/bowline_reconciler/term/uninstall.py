"""The end of a release: its reconcilers stop, every request is rolled back, and what remains is reported.

``--uninstall=DEPLOYMENT`` runs this in a Job before Helm deletes the release. The process stops the Deployment of the
reconcilers, becomes the leader as any reconciler does, and decides with ``Observed.uninstalling``: no request is
attempted, and one with side effects is rolled back. What plugins hold for pods that have ended is released; what they
hold for running pods is reported, because nothing can return it later. It ends when no BindRequest has Bowline's
finalizer and no reservation pod is without a running pod of its group. Repeating it after a crash is safe.
Decision 167.
"""

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass
from datetime import timedelta

from bowline.api import names
from bowline.api.gpu_share import gpu_groups
from bowline.api.meta import Object, ObjectKey, key_of
from bowline.kube.client import KubeClient
from bowline.kube.errors import ApiError, InfrastructureError, NotFound
from bowline.kube.resources import BINDREQUESTS, BOUND_AND_UNENDED, DEPLOYMENTS, PODS, Selection

log = logging.getLogger(__name__)

# What does not end is reported within two minutes, in which the Job's pod starts as well. A wait for the writes of a
# leader that has crashed takes one of them. To repeat the uninstall continues it.
LIMIT = timedelta(seconds=95)
_POLL_S = 1.0
# Objects that a log line names at most.
_NAMED = 20


class NotReleasedError(Exception):
    """Requests or reservations are left after ``LIMIT``; the message names them."""


@dataclass(frozen=True, slots=True)
class Remains:
    """What a release still holds: requests, and reservation pods that no running pod uses."""

    requests: Collection[ObjectKey]
    reservations: Collection[ObjectKey]

    @property
    def fields(self) -> dict[str, object]:
        """The fields of a log line: counts, and the first names of each."""
        named = {"bindRequests": self.requests, "reservations": self.reservations}
        return {
            field: {"count": len(keys), "first": [str(key) for key in sorted(keys)[:_NAMED]]}
            for field, keys in named.items()
        }


@dataclass(frozen=True, slots=True)
class Uninstall:
    """Ends one release. ``reservations``: the namespace of reservation pods."""

    client: KubeClient
    deployment: ObjectKey
    reservations: str

    async def stop_reconcilers(self) -> None:
        """Scale the Deployment to zero, so that its leader releases the Lease. Retried until the API server answers.

        Raises ApiError if this is not permitted; a Deployment that does not exist has no reconciler.
        """
        while True:
            try:
                await self.client.patch(DEPLOYMENTS, *self.deployment, {"spec": {"replicas": 0}}, subresource="scale")
            except NotFound:
                log.warning("no such Deployment", extra={"deployment": str(self.deployment)})
            except InfrastructureError as error:
                log.warning("cannot stop the reconcilers yet", extra={"error": str(error)})
                await asyncio.sleep(_POLL_S)
                continue
            return

    async def run(self) -> None:
        """Stop the reconcilers and wait until everything is released. Raises NotReleasedError after ``LIMIT``."""
        await self.stop_reconcilers()
        remains: Remains | None = None
        try:
            async with asyncio.timeout(LIMIT.total_seconds()):
                while remains is None or remains.requests or remains.reservations:
                    await asyncio.sleep(_POLL_S)
                    try:
                        remains = await self._remains()
                    except (InfrastructureError, ApiError) as error:
                        log.warning("cannot read what remains", extra={"error": str(error)})
        except TimeoutError:
            fields = remains.fields if remains is not None else {}
            log.error("not everything is released", extra=fields)  # noqa: TRY400 - the cause is in the fields
            raise NotReleasedError(f"after {LIMIT}: {fields}") from None
        log.info("released; a reservation pod that a running pod uses remains")

    async def _remains(self) -> Remains:
        """Read, live, what is not released. Raises the client's errors."""
        requests = await self.client.list_reduced(
            Selection(BINDREQUESTS.as_metadata()),
            lambda request: (key_of(request), names.FINALIZER in (request["metadata"].get("finalizers") or ())),
        )
        own = Selection(PODS.as_metadata(), self.reservations, names.LABEL_GPU_GROUP)
        reservations = await self.client.list_reduced(own, lambda pod: (key_of(pod), groups_of(pod)))
        groups = await self._groups_in_use() if reservations else frozenset()
        return Remains(
            [key for key, has_finalizer in requests if has_finalizer],
            [key for key, reserved_groups in reservations if not reserved_groups & groups],
        )

    async def _groups_in_use(self) -> frozenset[str]:
        """Return the groups of running pods; those of another binder have no label that a selector finds."""
        running = Selection(PODS.as_metadata(), field_selector=BOUND_AND_UNENDED)
        users = await self.client.list_reduced(running, lambda pod: (key_of(pod).namespace, groups_of(pod)))
        return frozenset().union(*(groups for namespace, groups in users if namespace != self.reservations))


def groups_of(pod: Object) -> frozenset[str]:
    """Return the GPU groups in a pod's labels."""
    return frozenset(gpu_groups(pod["metadata"].get("labels") or {}))
