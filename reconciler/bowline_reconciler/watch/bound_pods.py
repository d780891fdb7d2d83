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

from bowline.api.meta import Object, ObjectKey, ObjectUID, key_of, uid_of
from bowline.kube.client import KubeClient
from bowline.kube.reflector import Listener, Reflector
from bowline.kube.resources import PODS, Selection
from bowline_reconciler.decide.report import BindingContent

# A live read costs less than a longer wait for the event.
LIMIT = timedelta(milliseconds=500)
# A pod leaves this selection when its kubelet has started it.
_STARTING = "spec.nodeName!=,status.phase=Pending"


@dataclass(eq=False, slots=True)
class SentBind:
    """The last bind of a pod by this process: what its Binding contains, and the pod as it was bound.

    ``is_acknowledged``: it is the last attempt's, and the API server has accepted the Binding.
    """

    pod_uid: ObjectUID
    content: BindingContent
    is_acknowledged: bool = False
    observed: asyncio.Event = field(default_factory=asyncio.Event)
    pod: Object | None = None


class BoundPodWatch:
    """The watch. ``schedulers``: of whose pods; a single one is selected by the API server.

    ``sent_bind``: returns that of a pod; ``on_bound``: called with each such pod.
    """

    def __init__(
        self,
        client: KubeClient,
        schedulers: Collection[str],
        sent_bind: Callable[[ObjectKey], SentBind | None],
        on_bound: Callable[[Object], None],
    ) -> None:
        self._sent_bind = sent_bind
        self._on_bound = on_bound
        self._is_late = False
        selector = _STARTING + "".join(f",spec.schedulerName={name}" for name in schedulers if len(schedulers) == 1)
        self.reflector = Reflector(
            client,
            Selection(PODS, field_selector=selector),
            # A kubelet reports several changes of each pod that it starts.
            listener=Listener(concerns=lambda pod: self._bind_of(pod) is not None),
            transform=self._observe,
        )

    async def pod_of(self, bind: SentBind) -> Object | None:
        """Return the pod as it was bound; None if the watch does not show it in time."""
        if not bind.observed.is_set() and not self._is_late and self.reflector.contact_since is not None:
            try:
                async with asyncio.timeout(LIMIT.total_seconds()):
                    await bind.observed.wait()
            except TimeoutError:
                self._is_late = True  # until it delivers again, no other bind waits for it
        return bind.pod

    def _bind_of(self, pod: Object) -> SentBind | None:
        self._is_late = False
        bind = self._sent_bind(key_of(pod))
        return bind if bind is not None and bind.pod_uid == uid_of(pod) else None

    def _observe(self, pod: dict[str, Any]) -> None:
        """Transform: record an awaited pod, and cache none."""
        bind = self._bind_of(pod)
        if bind is not None:
            bind.pod = pod
            bind.observed.set()
            self._on_bound(pod)
