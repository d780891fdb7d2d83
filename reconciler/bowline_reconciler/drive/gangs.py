"""The wait between pre_bind and bind of a pod that is in a gang, indexed by the gang (alpha, gate GangBinding).

A request whose pod is prepared waits in the wait index for its PodGroup. The request that completes the gang admits
all prepared ones and wakes them; each repeats pre_bind, which finds its work done, and binds. Which requests are
prepared is memory of their states: after a crash their attempts prepare them again, and pods that are bound already
are listed. A pod is bound only when enough pods of its gang are prepared or bound. That is no transaction: the
Bindings follow one another, and one of them may still fail. Decision 206.
"""

from collections.abc import Collection
from datetime import timedelta
from weakref import WeakValueDictionary

from bowline.api.bindrequest import BindRequest
from bowline.api.gang import counts_as_bound, gang_of, min_members
from bowline.api.meta import Object, ObjectKey, ObjectRef, ObjectUID, is_reduced, uid_of
from bowline.framework.binding.post import denied_status
from bowline.framework.interface.status import Status
from bowline.framework.reason import Reason
from bowline.kube.client import KubeClient
from bowline.kube.errors import ApiError, NotFound, Unreadable, UnrecognizedReply
from bowline.kube.resources import KAI_PODGROUPS, PODGROUPS, PODS, Selection
from bowline.runtime.shared_read import SharedReads
from bowline.runtime.workqueue import WorkQueue
from bowline_reconciler.drive.state import PreparedPods, RequestState, RequestStates

# A change of the PodGroup, or a pod bound by another component, ends a wait at the next poll. The pods of a gang
# wake one another: only the longest prepared one polls often; the others, in case that one's request has ended.
POLL, OTHERS_POLL = timedelta(seconds=15), timedelta(minutes=2)
# The age of a PodGroup that decides.
_POD_GROUP_TTL_S = 2.0
# The age of a list of bound pods that leaves a gang waiting, and of one that completes it.
_BOUND_TTL_S, _BOUND_FRESH_S = 10.0, 1.0
_RESOURCES = {resource.api_version: resource for resource in (KAI_PODGROUPS, PODGROUPS)}


def is_complete(minimum: int, prepared: Collection[ObjectUID], bound: Collection[ObjectUID]) -> bool:
    """Return whether the prepared pods of a gang may be bound. A pod that is in both collections counts once. Pure.

    The collections have no duplicates. Their pods are only compared if the sizes do not decide: each pod of a waiting
    gang asks.
    """
    if len(prepared) >= minimum:
        return True
    if len(prepared) + len(bound) < minimum:
        return False
    return len({*prepared, *bound}) >= minimum


class Gangs:
    """Decides whether a prepared pod may be bound."""

    def __init__(self, client: KubeClient, states: RequestStates, queue: WorkQueue[ObjectKey]) -> None:
        self._client = client
        self._states = states
        self._queue = queue
        self._minimums: SharedReads[ObjectRef, int] = SharedReads(_POD_GROUP_TTL_S, client.clock.monotonic)
        # The bound pods of the gangs, by namespace: as listed, and what this process has bound since.
        self._bound: SharedReads[str, dict[ObjectRef, set[ObjectUID]]] = SharedReads(
            _BOUND_TTL_S, client.clock.monotonic
        )
        # Those of a gang are dropped with the last state that refers to them.
        self._prepared: WeakValueDictionary[ObjectRef, PreparedPods] = WeakValueDictionary()

    async def admit(self, request: BindRequest, gang: ObjectRef, state: RequestState) -> Status:
        """Return OK if the prepared pod may be bound with its gang, else WAIT.

        Raises the client's errors, except that a denied read is a Status.
        """
        prepared_pods = self._prepared.setdefault(gang, PreparedPods())
        state.gang.prepare(request, prepared_pods)
        if state.gang.is_admitted:
            return Status.ok()
        try:
            minimum = await self._minimums.get(gang, lambda: self._read_minimum(gang))
            is_ready = await self._is_complete(gang, minimum, prepared_pods)
        except ApiError as error:
            is_unreadable = isinstance(error, Unreadable)
            return Status.fatal(error.message, Reason.INVALID) if is_unreadable else denied_status(error.message)
        if state.gang.is_admitted:
            return Status.ok()  # by another pod of the gang, during the calls
        if not is_ready:
            is_first = next(iter(prepared_pods.values()), request.key) == request.key
            # Without a count, which changes with every pod: each new message of a wait is written and reported.
            why = (
                f"fewer than {minimum} pods of {gang.kind} {gang.key} are prepared or bound; its pods are bound when "
                "as many as it requires are"
            )
            return Status.wait(why, gang, retry_after=POLL if is_first else OTHERS_POLL)
        for key in tuple(prepared_pods.values()):
            member = self._states.get(key)
            if member is not None:
                member.gang.is_admitted = True
            if key != request.key:
                self._queue.add(key, ends_rest=True)
        return Status.ok()

    def bound(self, pod: Object) -> None:
        """Record that this process has bound the pod."""
        gang = gang_of(pod)
        members = self._bound.known(gang.key.namespace) if gang is not None else None
        if gang is not None and members is not None:
            members.setdefault(gang, set()).add(uid_of(pod))

    async def _is_complete(self, gang: ObjectRef, minimum: int, prepared_pods: PreparedPods) -> bool:
        if is_complete(minimum, prepared_pods, ()):
            return True
        # After each call the prepared pods are counted again: others may have been prepared meanwhile.
        bound = await self._bound_pods(gang, _BOUND_TTL_S)
        if not is_complete(minimum, prepared_pods, bound):
            return False
        bound = await self._bound_pods(gang, _BOUND_FRESH_S)
        return is_complete(minimum, prepared_pods, bound)

    async def _read_minimum(self, gang: ObjectRef) -> int:
        """Return how many pods the gang needs; 0 if its PodGroup does not exist or is not served."""
        resource = _RESOURCES[gang.api_version]
        try:
            return min_members(await self._client.get(resource, gang.key.namespace, gang.key.name))
        except NotFound:
            return 0
        except (ApiError, UnrecognizedReply) as error:
            if error.code == 404 and not await self._client.serves(resource):
                return 0
            raise

    async def _bound_pods(self, gang: ObjectRef, max_age_s: float) -> Collection[ObjectUID]:
        """Return the UIDs of the gang's bound pods, listed no longer ago than that. Raises the client's errors.

        The collection is not a copy: each pod of a waiting gang asks.
        """
        namespace = gang.key.namespace
        members = await self._bound.get(namespace, lambda: self._list_bound(namespace), max_age_s)
        return members.get(gang, frozenset())

    async def _list_bound(self, namespace: str) -> dict[ObjectRef, set[ObjectUID]]:
        members: dict[ObjectRef, set[ObjectUID]] = {}
        selection = Selection(PODS, namespace, field_selector="spec.nodeName!=")
        for gang, uid in await self._client.list_reduced(selection, _member):
            if gang is not None:
                members.setdefault(gang, set()).add(uid)
        return members


def _member(pod: Object) -> tuple[ObjectRef | None, ObjectUID]:
    # One that is not decoded was selected because it is bound.
    return gang_of(pod) if is_reduced(pod) or counts_as_bound(pod) else None, uid_of(pod)
