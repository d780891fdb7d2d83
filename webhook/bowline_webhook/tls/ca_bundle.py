"""The release's webhook configurations: watched, and patched so that every entry trusts the CA bundle.

The chart owns them; they are read and patched, never created, so that uninstalling the release leaves nothing behind.
The watch detects a recreated one, for example after an upgrade.
"""

import logging
from collections.abc import Awaitable, Callable

from bowline.api.meta import Object, ObjectKey
from bowline.api.names import FIELD_MANAGER_CABUNDLE
from bowline.kube.calls import PatchType
from bowline.kube.client import KubeClient
from bowline.kube.reflector import Listener, Reflector
from bowline.kube.resources import MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS, Selection
from bowline_webhook.tls.bundle import bundle_patch

log = logging.getLogger(__name__)


class Configurations:
    """The mutating and the validating configuration of this name. ``on_change`` is called after every event."""

    def __init__(self, client: KubeClient, name: str, on_change: Callable[[], None]) -> None:
        self._client = client
        self._name = name
        self.reflectors = {
            resource: Reflector(
                client,
                Selection(resource, field_selector=f"metadata.name={name}"),
                listener=Listener(lambda *_: on_change()),
            )
            for resource in (MUTATING_WEBHOOKS, VALIDATING_WEBHOOKS)
        }

    def objects(self) -> list[Object]:
        """Return the cached configurations."""
        return [configuration for reflector in self.reflectors.values() for configuration in reflector.store.values()]

    def unread(self) -> str | None:
        """Return which configurations have not been read yet, and why; None after all have synced."""
        for resource, reflector in self.reflectors.items():
            if not reflector.synced.is_set():
                return f"{resource.plural} {self._name}: {reflector.last_error or 'not read yet'}"
        return None

    def not_ready_reason(self) -> str | None:
        """Return why no API server is configured to call the webhook; None if at least one configuration exists.

        One of the two is enough: in an emergency the operator deletes the validating one and restores it once the
        webhook is ready.
        """
        if self.unread() is None and not self.objects():
            return f"there is no configuration {self._name}; install the chart, or name another"
        return self.unread()

    async def publish(self, bundle: bytes, current_bundle: Callable[[], Awaitable[bytes | None]]) -> None:
        """Set the bundle in every entry of every cached configuration. Raises KubeError; Conflict or Invalid after a
        concurrent change.

        The cache may be stale, and a write from it could revert another replica's. So before a write the
        configuration is read live, then ``current_bundle`` recomputes the bundle (None: skip this write), and the
        patch tests the resourceVersion that was read first.
        """
        for resource, reflector in self.reflectors.items():
            cached_object = reflector.store.get(ObjectKey("", self._name))
            if cached_object is None or not bundle_patch(cached_object, bundle):
                continue
            configuration = await self._client.get(resource, "", self._name)
            live_bundle = await current_bundle()
            patch = bundle_patch(configuration, live_bundle) if live_bundle is not None else []
            if patch:
                await self._client.patch(
                    resource, "", self._name, patch, content_type=PatchType.JSON, field_manager=FIELD_MANAGER_CABUNDLE
                )
                log.info("published the CA bundle", extra={"kind": resource.kind, "configuration": self._name})
