"""Work of a plugin outside its calls, on the leader only: its own queues and its ``run``.

It begins with a term of leadership and ends with it. What raises is logged with the plugin's name, counted
(``failed``) and continues after a backoff, spread by ``jitter`` in [0, 1): a plugin's own task would end unnoticed.
An error of the API server, such as a denial by a quota, is logged with its cause in one line, every other exception
as a defect with its traceback.

A queue isolates its keys as the queue of requests does: a reconcile that hangs delays its own key only, and those of
one namespace leave room for every other. Each ends after a limit.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta

from bowline.api.meta import ObjectKey
from bowline.framework.interface.handle import Reconcile
from bowline.kube.errors import KubeError
from bowline.kube.permits import Permit
from bowline.runtime.backoff import ItemBackoff
from bowline.runtime.tasks import raise_foreign_cancellation, turns_timeout
from bowline.runtime.workers import Result, run_worker
from bowline.runtime.workqueue import RETRY_BACKOFF, WorkQueue

log = logging.getLogger(__name__)

# Keys of one queue that are reconciled at a time; slow ones do not count (see ``WorkQueue``).
WORKERS = 32
# The shortest pause of a ``run`` that has raised.
_PAUSE = timedelta(seconds=1)
# The shortest delay of a requeue: a queue without one would keep the event loop.
_SHORTEST = timedelta(milliseconds=100)


class PluginWorker:
    """A plugin's own leader-only queue; keys added on a standby are dropped. ``limit_s``: of one reconcile;
    ``permit``: of its writes."""

    def __init__(
        self,
        name: str,
        reconcile: Reconcile,
        limit_s: float,
        failed: Callable[[], None],
        jitter: Callable[[], float],
        permit: Permit | None = None,
    ) -> None:
        self.name = name
        self._reconcile = reconcile
        self._limit_s = limit_s
        self._failed = failed
        self.permit = permit
        self.queue: WorkQueue[ObjectKey] = WorkQueue(
            group=lambda key: key.namespace,
            workers=WORKERS,
            backoff=ItemBackoff(*RETRY_BACKOFF, random=jitter),
            is_open=False,
        )

    async def run(self) -> None:
        """Work as one of the queue's ``capacity`` workers, until the queue is shut down."""
        await run_worker(self.queue, self._process, self._on_error)

    async def _process(self, key: ObjectKey) -> Result:
        async with turns_timeout(self._limit_s):
            delay = await self._reconcile(key)
        return Result(None if delay is None else max(delay, _SHORTEST))

    def _on_error(self, key: ObjectKey) -> None:
        self._failed()
        _log_error({"worker": self.name, "key": str(key)})


async def run_in_term(
    name: str,
    run: Callable[[], Awaitable[None]],
    failed: Callable[[], None],
    jitter: Callable[[], float],
) -> None:
    """Call a plugin's ``run`` until it returns."""
    backoff: ItemBackoff[str] = ItemBackoff(*RETRY_BACKOFF, random=jitter)
    while True:
        try:
            return await raise_foreign_cancellation(run())
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException:  # noqa: BLE001 - anything else would end the work of all others
            failed()
            _log_error({"worker": name})
        await asyncio.sleep(backoff.next_delay(name, _PAUSE).total_seconds())


def _log_error(fields: Mapping[str, str]) -> None:
    error = sys.exception()
    if isinstance(error, KubeError):
        log.warning("a plugin's call fails, its worker retries", extra={**fields, "error": str(error)})
    else:
        log.exception("plugin worker failed", extra=fields)
