"""The methods of a plugin that the reconciler calls.

Every binding method may be called again after a crash, with only the API objects as state, and must first check
whether its effect already exists.

A defect is counted and logged with the plugin's name, and the request waits for the repair: an exception, a result of
the wrong type, a call that exceeds its budget. An ``InfrastructureError`` of ``bowline.errors`` is TRANSIENT, and so
is an exceeded budget if the API server took the time. Decision 280.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from bowline.api.bindrequest import BindRequest
from bowline.api.meta import Object, ObjectKey
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.handle import EventSource, Handle
from bowline.framework.interface.plugin import Args_co, Plugin
from bowline.framework.interface.status import Status


@dataclass(frozen=True, slots=True)
class Budgets:
    """Maximum duration of one plugin's calls, in seconds. A plugin overrides them with a value of its own."""

    call_s: float = 60.0  # one pre_bind or bind; a plugin that needs longer returns WAIT
    post_bind_s: float = 5.0  # one post_bind: it delays the report of the bind
    rollback_s: float = 10.0  # one rollback, which is retried until it returns OK; one forget
    setup_s: float = 60.0  # setup
    reconcile_s: float = 300.0  # one reconcile of a key of an own queue


class BindingPlugin(Plugin[Args_co]):
    """A plugin of the reconciler. Set ``name``, override the methods you need."""

    # The time budgets of its calls.
    budgets: ClassVar[Budgets] = Budgets()
    # Whether it may wait at the same time as its neighbours in the order that are parallel too: a WAIT of one of them
    # does not keep its pre_bind from being called.
    parallel: ClassVar[bool] = False

    # --- lifecycle ---

    async def setup(self, handle: Handle) -> None:
        """Prepare, without writes to the API server. Once per process, before the plugin's watches begin.

        An exception prevents the process from starting. Not called in the webhook, nor for disabled plugins. What
        must be closed, such as an HTTP session, is opened in ``run``.
        """

    async def run(self) -> None:
        """Run beside the calls of one term of leadership: one task, which is cancelled when the term has ended.

        All caches are synced. What precedes its first wait is done before the first call of the term: forget here
        what another leader may have changed since. An exception is counted and logged, and it is called again after
        a pause. It may return; a resource that the calls use is kept open like this::

            async with ClientSession() as self._http:
                await asyncio.Event().wait()
        """

    # --- binding ---

    def applies(self, pod: Object, request: BindRequest) -> bool:
        """Return whether the plugin has anything to do for the pod. No I/O; must change neither argument.

        For another pod none of its binding methods is called, except ``forget``; the rollback of a request asks the
        plugins that had something to do for one of its attempts. Decide by what does
        not change while the pod is bound: a part of its spec, of the request, or an annotation that the plugin's
        validate_pod keeps. What it raises is a defect: every pod waits, because the plugin may concern it.
        """
        return True

    async def pre_bind(self, ctx: BindContext) -> Status:
        """Prepare what the pod needs on its node. Called in every attempt, and again after a crash.

        - OK, SKIP: continue with the next plugin. The Binding carries the annotations and labels of an OK to the pod,
          in the same transaction. Two plugins with different values for one key are a defect.
        - WAIT: the attempt ends without being counted; the next begins when an object of ``wake_on`` changes.
        - RETRY: the attempt ends and counts; the next begins after a backoff.
        - FATAL: the side effects are rolled back, then the request ends Failed.

        After a WAIT of a parallel plugin the parallel ones that follow it are called too.
        """
        return Status.ok()

    async def bind(self, ctx: BindContext) -> Status:
        """Bind the pod, or return SKIP to leave it to the next plugin.

        From its first write on the request cannot be withdrawn. OK is believed only if the API server shows the pod
        on its node; one that lacks any of ``ctx.annotations`` and ``ctx.labels`` is not reported as prepared. After a
        crash the pod is read first, and bind is called again only if it is not bound. If every plugin returns SKIP,
        the request ends Failed/NoPlugin.
        """
        return Status.skip()

    async def post_bind(self, ctx: BindContext) -> None:
        """Clean up after a bind; cannot change the outcome, an exception is only counted.

        Called once for each completion: again after a crash before Succeeded is written, not again after its own
        error or timeout. Mandatory work belongs in pre_bind or bind.
        """

    async def rollback(self, ctx: BindContext, why: Status) -> Status:
        """Undo pre_bind of an abandoned request; ``why`` is the failure that ends it.

        OK and SKIP release the request; after anything else, or an exception, it is called again with a backoff, also
        by the next leader. The reasons of an OK name what cannot be undone, such as an object that another client has
        taken over: ``RolledBack`` is then Unknown. ``ctx.state`` is empty: derive what to undo from the API objects.
        Not overridden, it is ``release``.
        """
        return await self.release(ctx)

    async def release(self, ctx: BindContext) -> Status:
        """Return what a bound pod holds, such as a licence or an address: the pod has ended, or is gone.

        Called for a request whose pod was bound and to which the plugin applied, after OK or SKIP not again; after
        anything else, or an exception, with a backoff, also by the next leader: a reconciler that was down calls it
        later. ``ctx.pod`` is None if the pod no longer exists, ``ctx.state`` is empty. A request that ends without a
        bind is rolled back instead.
        """
        return Status.ok()

    async def forget(self, key: ObjectKey) -> None:
        """Drop in-memory data about a request that no longer exists and for which this plugin was called. No I/O."""

    # --- operations ---

    def event_sources(self) -> Iterable[EventSource]:
        """Return the watches that wake waiting requests. Once per process, after setup."""
        return ()
