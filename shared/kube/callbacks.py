"""The callbacks of a watch: code of its owner that must not end the watch.

An exception of a transform or of a handler concerns one object and one owner (a plugin, or the process itself). It is
counted, logged at a bounded rate with the object's key, and the watch goes on with the next object.
"""

import logging
from collections.abc import Callable
from enum import StrEnum
from typing import TypeVar

from shared.api.meta import ObjectKey
from shared.kube.metrics import KubeMetrics
from shared.runtime.clock import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")

# The owner of the watches that are not a plugin's.
PROCESS = "bowline"
# One line with a traceback a minute for each callback of a watch; the counter has all of them.
_LOG_EVERY_S = 60.0


class Callback(StrEnum):
    """Which code of the owner was called."""

    TRANSFORM = "transform"  # slim: what is kept of an object
    KEYS = "keys"  # the requests that an object concerns
    ON_CHANGE = "on_change"  # what the owner does about a change


class Callbacks:
    """Calls the callbacks of one watch and reports what they raise."""

    def __init__(self, owner: str, resource: str, clock: Clock, metrics: KubeMetrics | None) -> None:
        self._owner = owner
        self._resource = resource
        self._clock = clock
        self._metrics = metrics
        self._logged_at: dict[Callback, float] = {}
        self._suppressed: dict[Callback, int] = {}
        if metrics is not None:
            metrics.expect_callbacks(owner, resource, Callback)

    def guard(self, callback: Callback, key: ObjectKey, call: Callable[[], T], default: T) -> T:
        """Return what ``call`` returns; ``default`` where it raises."""
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - reported; other objects and other owners go on
            self.failed(callback, key, error)
            return default

    def failed(self, callback: Callback, key: ObjectKey, error: Exception) -> None:
        """Report an exception."""
        if self._metrics is not None:
            self._metrics.callback_errors.labels(self._owner, self._resource, callback).inc()
        now = self._clock.monotonic()
        logged_at = self._logged_at.get(callback)
        if logged_at is not None and now - logged_at < _LOG_EVERY_S:
            self._suppressed[callback] = self._suppressed.get(callback, 0) + 1
            return
        self._logged_at[callback] = now
        log.error(
            "watch callback failed",
            extra={
                "plugin": self._owner,
                "resource": self._resource,
                "callback": callback.value,
                "object": str(key),
                "suppressed": self._suppressed.pop(callback, 0),
            },
            exc_info=error,
        )
