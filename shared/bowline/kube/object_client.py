"""What plugins use of the client: reads and writes of objects. Types only.

It has no part in leadership, connections or watches: those are the process's.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Protocol, TypeVar

from bowline.kube.messages import PatchType
from bowline.kube.resources import Resource, Selection
from bowline.runtime.clock import Clock

T = TypeVar("T")
Body = Mapping[str, Any]
Objects = list[dict[str, Any]]


class ObjectClient(Protocol):
    """Reads and writes objects with the reconciler's account. Every method raises the errors of ``bowline.errors``.

    An InfrastructureError need not be caught: the framework repeats the call. After one, and after a cancellation, a
    write may have been applied or not. Writes are allowed while the process leads, from ``start`` to ``stop``.
    """

    @property
    def clock(self) -> Clock:
        """The process's time, which tests replace."""

    @property
    def random(self) -> Random:
        """The process's random numbers, for names and jitter."""

    async def get(
        self, resource: Resource, namespace: str, name: str, *, subresource: str = "", params: Mapping[str, str] = ...
    ) -> dict[str, Any]:
        """Return one object. Raises NotFound."""

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 0,
        continue_: str = "",
    ) -> dict[str, Any]:
        """Return one page as the API server sends it; without a limit, the whole list."""

    async def list_all(
        self, resource: Resource, namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> Objects:
        """Return all objects of one consistent snapshot. For few or small objects: memory holds all of them."""

    async def list_reduced(self, selection: Selection, reduce: Callable[[dict[str, Any]], T]) -> Sequence[T]:
        """Return the part that ``reduce`` returns of each object of one consistent snapshot, read page by page."""

    async def create(
        self,
        resource: Resource,
        namespace: str,
        body: Body,
        *,
        name: str = "",
        subresource: str = "",
        params: Mapping[str, str] = ...,
        on_send: Callable[[], None] | None = None,
        essential: Body | None = None,
    ) -> dict[str, Any]:
        """Create an object, or with ``name`` and ``subresource`` POST to an object's subresource.

        ``on_send`` is called when the request leaves the client's own queues; if cancelled before, it has had no
        effect. ``essential``: as for ``patch``; an object that is stored otherwise is deleted again. Raises
        AlreadyExists, Invalid, Forbidden.
        """

    async def patch(  # noqa: PLR0913 - the options of the API server
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Body | Sequence[Body],
        *,
        subresource: str = "",
        content_type: PatchType = PatchType.MERGE,
        field_manager: str = "",
        force: bool = False,
        essential: Body | None = None,
    ) -> dict[str, Any]:
        """Patch an object. A resourceVersion in the body is a precondition (Conflict).

        ``essential``: the part of the body that must be stored as written, usually all of a merge patch. If an
        admission webhook or policy has changed it, NotStoredError is raised; a plugin need not catch it: the request
        then waits with that reason.
        """

    async def update(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        body: Body,
        *,
        subresource: str = "",
        essential: Body | None = None,
    ) -> dict[str, Any]:
        """Replace an object; a resourceVersion in the body is a precondition (Conflict). ``essential``: see patch."""

    async def delete(
        self,
        resource: Resource,
        namespace: str,
        name: str,
        *,
        uid: str = "",
        resource_version: str = "",
        grace_period_s: int | None = None,
    ) -> dict[str, Any]:
        """Delete an object. ``uid`` and ``resource_version`` are preconditions (Conflict)."""

    async def serves(self, resource: Resource) -> bool:
        """Return whether the API server lists the resource: a 404 does not say so."""
