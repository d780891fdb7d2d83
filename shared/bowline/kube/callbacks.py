"""Callbacks of a watch: its owner's code, which must not end the watch.

An exception of a transform or of a handler affects one object and one owner (a plugin, or the process itself). It is
counted and logged at a bounded rate with the object's key, and the watch continues with the next object.
"""

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from bowline.api.meta import ObjectKey
from bowline.kube.metrics import KubeMetrics
from bowline.runtime.clock import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")

# The owner of the watches that do not belong to a plugin.
PROCESS = "bowline"
# One line with a traceback per minute for each callback of a watch; the counter has all of them.
_LOG_EVERY_S = 60.0


class Callback(StrEnum):
    """The kinds of callback."""

    TRANSFORM = "transform"  # trims an object before caching
    KEYS = "keys"  # the requests that an object concerns
    ON_CHANGE = "on_change"  # the handler of a change
    QUEUEING_HINT = "queueing_hint"  # whether a change may end a request's wait


class Callbacks:
    """Calls the callbacks of one watch and reports their exceptions."""

    def __init__(self, owner: str, resource: str, clock: Clock, metrics: KubeMetrics) -> None:
        self.owner = owner
        self.in_progress: tuple[Callback, float] | None = None  # since when, by the monotonic clock
        self._resource = resource
        self._clock = clock
        self._metrics = metrics
        self._logged_at: dict[Callback, float] = {}
        self._suppressions: dict[Callback, int] = {}
        metrics.expect_callbacks(owner, resource, Callback)

    def guard(self, callback: Callback, key: ObjectKey, call: Callable[[], T], default: T) -> T:
        """Return the result of ``call``; ``default`` if it raises."""
        self.in_progress = callback, self._clock.monotonic()
        try:
            return call()
        except BaseException as error:  # noqa: BLE001 - reported; other objects and other owners go on
            self.record_failure(callback, key, error)
            return default
        finally:
            self.in_progress = None

    def record_failure(self, callback: Callback, key: ObjectKey, error: BaseException) -> None:
        """Count an exception, and log it with its traceback unless one was logged within the last minute."""
        self._metrics.callback_errors.labels(self.owner, self._resource, callback).inc()
        now = self._clock.monotonic()
        logged_at = self._logged_at.get(callback)
        if logged_at is not None and now - logged_at < _LOG_EVERY_S:
            self._suppressions[callback] = self._suppressions.get(callback, 0) + 1
            return
        self._logged_at[callback] = now
        log.error(
            "watch callback failed",
            extra={
                "plugin": self.owner,
                "resource": self._resource,
                "callback": callback.value,
                "object": str(key),
                "suppressed": self._suppressions.pop(callback, 0),
            },
            exc_info=error,
        )
