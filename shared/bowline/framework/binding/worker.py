"""Work of a plugin outside its calls, on the leader only: its own queues.

They begin with a term of leadership and end with it. What raises is logged with the plugin's name, counted
(``failed``) and continues after a backoff, spread by ``jitter`` in [0, 1): a plugin's own task would end unnoticed.
An error of the API server, such as a denial by a quota, is logged with its cause in one line, every other exception
as a defect with its traceback.
"""

import asyncio
import logging
import sys
from collections.abc import Callable

from bowline.api.meta import ObjectKey
from bowline.framework.binding.handle import Reconcile
from bowline.kube.errors import KubeError
from bowline.runtime.backoff import ItemBackoff
from bowline.runtime.tasks import cancel_and_wait
from bowline.runtime.workers import Result, run_worker
from bowline.runtime.workqueue import RETRY_BACKOFF, WorkQueue

log = logging.getLogger(__name__)


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
