"""The requests through the proxy, in order of arrival."""

import threading
import time
from dataclasses import dataclass, replace

from bowline.testing.fault_proxy.calls import ProxiedCall


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its result.

    ``code`` is the real API server's status code, None if it sent no reply; ``replied`` states whether the client got
    a reply, real or injected; ``fault`` names the injected fault. A watch is recorded when it is opened. ``arrived``
    is the time of arrival, by ``time.monotonic``; ``message`` is the API server's about a denial, but for a watch.
    """

    number: int
    call: ProxiedCall
    code: int | None
    replied: bool
    fault: str = ""
    arrived: float = 0.0
    message: str = ""

    @property
    def applied(self) -> bool:
        """Whether the API server executed it."""
        return self.code is not None and 200 <= self.code < 300

    @property
    def outcome(self) -> str:
        """As text, such as ``201``, ``201, reply lost`` or ``not forwarded (DropBefore)``."""
        if self.code is None:
            return f"not forwarded ({self.fault})" if self.fault else "not answered"
        return f"{self.code}" if self.replied else f"{self.code}, reply lost"


class Record:
    """Exchanges as they end; read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._arrival_times: dict[int, float] = {}
        self._exchanges: list[Exchange] = []

    def begin(self) -> int:
        """Return the number of a request that has just arrived."""
        with self._lock:
            self._number += 1
            self._arrival_times[self._number] = time.monotonic()
            return self._number

    def end(self, exchange: Exchange) -> None:
        """Record the result of a request."""
        with self._lock:
            self._exchanges.append(replace(exchange, arrived=self._arrival_times.pop(exchange.number)))

    def exchanges(self, since: int = 0) -> list[Exchange]:
        """Return the completed exchanges with a number above ``since``, in order of arrival."""
        with self._lock:
            later = [exchange for exchange in self._exchanges if exchange.number > since]
        return sorted(later, key=lambda exchange: exchange.number)

    def latest(self) -> int:
        """Return the number of the latest completed exchange; 0 if there is none.

        Not how many there are: an earlier one may still be under way, and is recorded before it.
        """
        with self._lock:
            return max((exchange.number for exchange in self._exchanges), default=0)
