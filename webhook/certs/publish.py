"""Keeps the API server trusting our self-signed certificate: writes its authority into the webhook configurations.

The configurations are the chart's; they are read and patched, never created, so that nothing is left behind when the
release goes. Until every one trusts us the process is not ready, and after that it is looked after: an upgrade may
put a configuration there anew.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import UTC, datetime, timedelta

from shared.api.names import FIELD_MANAGER_CABUNDLE
from shared.kube.client import KubeClient, PatchType
from shared.kube.errors import Conflict, Invalid, KubeError, NotFound
from shared.kube.resources import Resource
from shared.runtime.backoff import Backoff
from webhook.certs.bundle import bundle_patch

log = logging.getLogger(__name__)

_GROUP, _VERSION = "admissionregistration.k8s.io", "v1"
CONFIGURATIONS = (
    Resource(_GROUP, _VERSION, "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", namespaced=False),
    Resource(_GROUP, _VERSION, "validatingwebhookconfigurations", "ValidatingWebhookConfiguration", namespaced=False),
)
# An outage of the API server lasts minutes; ten seconds after it at most we are ready again.
_BACKOFF = (timedelta(seconds=0.5), timedelta(seconds=10))
# Two reads a minute; what an upgrade undoes is mended within this.
_RECHECK_S = 60.0

# Opens access to the cluster, with the credentials of that moment; raises KubeError while there are none.
Connect = Callable[[], AbstractAsyncContextManager[KubeClient]]


class CaPublisher:
    """Publishes one authority in the configurations of the given names, of both kinds."""

    def __init__(self, connect: Connect, names: Sequence[str], authority: bytes) -> None:
        self._connect = connect
        self._targets = [(resource, name) for name in names for resource in CONFIGURATIONS]
        self._authority = authority
        self._backoff: Backoff[str] = Backoff(*_BACKOFF)
        self._missing: str | None = "the certificate is not yet in the webhook configurations"

    def missing(self) -> str | None:
        """Return what keeps the API server from trusting us; None when it does."""
        return self._missing

    async def run(self) -> None:
        """Publish, and look after it, until cancelled."""
        while True:
            try:
                async with self._connect() as client:
                    while True:
                        await self._publish(client)
                        self._backoff.succeeded("")
                        self._missing = None
                        await asyncio.sleep(_RECHECK_S)
            except KubeError as error:
                await self._wait_after(error)

    async def _wait_after(self, error: KubeError) -> None:
        wait = self._backoff.failed("")
        if isinstance(error, Conflict | Invalid):
            # Another replica was quicker; its authority and ours both belong there.
            log.debug("webhook configuration has changed, trying again", extra={"error": str(error)})
        else:
            if self._missing is not None or isinstance(error, NotFound):
                self._missing = f"the certificate is not in the webhook configurations: {error}"
            log.warning(
                "cannot publish the certificate, trying again",
                extra={"error": str(error), "wait": f"{wait.total_seconds():.1f}s"},
            )
        await asyncio.sleep(wait.total_seconds())

    async def _publish(self, client: KubeClient) -> None:
        for resource, name in self._targets:
            configuration = await client.get(resource, "", name)
            patch = bundle_patch(configuration, self._authority, datetime.now(UTC))
            if not patch:
                continue
            await client.patch(
                resource, "", name, patch, content_type=PatchType.JSON, field_manager=FIELD_MANAGER_CABUNDLE
            )
            log.info("published the certificate", extra={"kind": resource.kind, "configuration": name})
