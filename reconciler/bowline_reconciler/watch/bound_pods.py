"""Reads where a pod was bound, from the watch event of the bind itself.

The API server answers a Binding without the pod, and an admission webhook or policy of somebody else may have changed
its target or its annotations. So a bind is reported only after the pod was read. A watch of the bound pods that no
kubelet has started yet shows it within milliseconds, without a call for each bind; nothing of it is kept. Where the
watch does not deliver in time, the caller reads the pod live. Decision 221.
"""

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from weakref import WeakValueDictionary

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import Object, ObjectKey, ObjectUID, key_of, uid_of
from bowline.kube.client import KubeClient
from bowline.kube.reflector import Listener, Reflector
from bowline.kube.resources import PODS, Selection

# A live read costs less than a longer wait for the event.
LIMIT = timedelta(milliseconds=500)
# A pod leaves this selection when its kubelet has started it.
_STARTING = "spec.nodeName!=,status.phase=Pending"


@dataclass(eq=False, slots=True, weakref_slot=True)
class AwaitedBind:
    """A bind whose pod is awaited for as long as this object is kept."""

    observed: asyncio.Event = field(default_factory=asyncio.Event)
    pod: Object | None = None

    def resolve(self, pod: Object) -> None:
        """Record the bound pod."""
        self.pod = pod
        self.observed.set()


class BoundPodWatch:
    """The watch. ``schedulers``: of whose pods; a single one is selected by the API server. ``on_bound``: called with
    each pod that is awaited.
    """

    def __init__(self, client: KubeClient, schedulers: Collection[str], on_bound: Callable[[Object], None]) -> None:
        self._on_bound = on_bound
        self._awaited: WeakValueDictionary[tuple[ObjectKey, ObjectUID], AwaitedBind] = WeakValueDictionary()
        self._is_late = False
        selector = _STARTING + "".join(f",spec.schedulerName={name}" for name in schedulers if len(schedulers) == 1)
        self.reflector = Reflector(
            client,
            Selection(PODS, field_selector=selector),
            listener=Listener(concerns=self._concerns),
            transform=self._observe,
        )

    def expect(self, request: BindRequest) -> AwaitedBind:
        """Await the bind of the request's pod; called before the Binding is sent."""
        bind = self._awaited[request.key, request.pod_uid] = AwaitedBind()
        return bind

    async def pod_of(self, bind: AwaitedBind) -> Object | None:
        """Return the pod as it was bound; None if the watch does not show it in time."""
        if not bind.observed.is_set() and not self._is_late and self.reflector.contact_since is not None:
            try:
                async with asyncio.timeout(LIMIT.total_seconds()):
                    await bind.observed.wait()
            except TimeoutError:
                self._is_late = True  # until it delivers again, no other bind waits for it
        return bind.pod

    def _concerns(self, pod: Object) -> bool:
        """Return whether the pod is awaited: a kubelet reports several changes of each pod that it starts."""
        self._is_late = False
        return (key_of(pod), uid_of(pod)) in self._awaited

    def _observe(self, pod: dict[str, Any]) -> None:
        """Transform: record an awaited pod, and cache none."""
        self._is_late = False
        bind = self._awaited.get((key_of(pod), uid_of(pod)))
        if bind is not None:
            bind.resolve(pod)
            self._on_bound(pod)
