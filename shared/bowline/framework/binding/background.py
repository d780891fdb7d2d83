"""Work of a plugin outside its calls, on the leader only: its own queues, and its background tasks.

Both begin with a term of leadership and end with it. What raises is logged with the plugin's name, counted
(``failed``) and continues after a backoff, spread by ``jitter`` in [0, 1): a plugin's own task would end unnoticed.
An error of the API server, such as a denial by a quota, is logged with its cause in one line, every other exception
as a defect with its traceback.
"""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from datetime import timedelta

from bowline.api.meta import ObjectKey
from bowline.framework.binding.handle import Reconcile
from bowline.kube.errors import KubeError
from bowline.runtime.backoff import Backoff, ItemBackoff
from bowline.runtime.tasks import cancel_and_wait, raise_foreign_cancellation
from bowline.runtime.workers import Result, run_worker
from bowline.runtime.workqueue import RETRY_BACKOFF, WorkQueue

log = logging.getLogger(__name__)

_RESTART_BASE = timedelta(seconds=1)
_RESTART_CAP = timedelta(minutes=1)


class PluginWorker:
    """A plugin's own leader-only queue with one worker; keys added on a standby are dropped."""

    def __init__(
        self, name: str, reconcile: Reconcile, failed: Callable[[], None], jitter: Callable[[], float]
    ) -> None:
        self._name = name
        self._reconcile = reconcile
        self._failed = failed
        self.queue: WorkQueue[ObjectKey] = WorkQueue(
            is_open=False, backoff=ItemBackoff(*RETRY_BACKOFF, random=jitter)
        )
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.queue.open()
        working = run_worker(self.queue, self._process, self._on_error)
        self.task = asyncio.create_task(working, name=f"worker {self._name}")

    def cancel(self) -> None:
        """Accept no more keys and cancel the one in progress; ``stop`` still must be called."""
        self.queue.shut_down()
        if self.task is not None:
            self.task.cancel()

    async def stop(self) -> None:
        """Stop immediately. Raises the worker's error if it has failed."""
        self.queue.shut_down()
        task, self.task = self.task, None
        if task is not None:
            await cancel_and_wait(task)

    async def _process(self, key: ObjectKey) -> Result:
        return Result(await self._reconcile(key))

    def _on_error(self, key: ObjectKey) -> None:
        self._failed()
        fields = {"worker": self._name, "key": str(key)}
        error = sys.exception()
        if isinstance(error, KubeError):
            log.warning("a plugin's call fails, its worker retries", extra={**fields, "error": str(error)})
        else:
            log.exception("plugin worker failed", extra=fields)


class BackgroundTask:
    """A plugin's background task: runs until it returns; restarted with a backoff after an exception."""

    def __init__(
        self,
        name: str,
        run: Callable[[], Awaitable[None]],
        failed: Callable[[], None],
        jitter: Callable[[], float],
    ) -> None:
        self._name = name
        self._run = run
        self._failed = failed
        self._jitter = jitter
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.create_task(self._supervise(), name=f"background {self._name}")

    def cancel(self) -> None:
        """Cancel it; ``stop`` still must be called."""
        if self.task is not None:
            self.task.cancel()

    async def stop(self) -> None:
        """Cancel it and wait until it has ended."""
        task, self.task = self.task, None
        if task is not None:
            await cancel_and_wait(task)

    async def _supervise(self) -> None:
        backoff = Backoff(_RESTART_BASE, _RESTART_CAP, self._jitter)
        while True:
            try:
                await raise_foreign_cancellation(self._run())
            except (Exception, SystemExit) as error:
                self._failed()
                pause = backoff.next_delay()
                fields = {"task": self._name, "restart": f"in {pause.total_seconds():.1f} s"}
                if isinstance(error, KubeError):
                    log.warning("a plugin's call fails, its task restarts", extra={**fields, "error": str(error)})
                else:
                    log.exception("plugin task failed", extra=fields)
                await asyncio.sleep(pause.total_seconds())
            else:
                return
