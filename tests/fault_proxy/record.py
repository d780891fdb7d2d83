"""What has gone through the proxy, in the order of arrival."""

import threading
import time
from dataclasses import dataclass, replace

from tests.fault_proxy.calls import Call


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and what became of it.

    ``code`` is the real API server's answer, None if it never gave one; ``replied`` says whether any answer, real or
    made up, was handed to the sender; ``fault`` names what was done to it. A watch counts once it has been opened.
    ``arrived`` is when it came in, by ``time.monotonic``.
    """

    number: int
    call: Call
    code: int | None
    replied: bool
    fault: str = ""
    arrived: float = 0.0

    @property
    def applied(self) -> bool:
        """Whether the API server carried it out."""
        return self.code is not None and 200 <= self.code < 300

    @property
    def outcome(self) -> str:
        """In words, such as ``201``, ``201, reply lost`` or ``not forwarded (DropBefore)``."""
        if self.code is None:
            return f"not forwarded ({self.fault})" if self.fault else "not answered"
        return f"{self.code}" if self.replied else f"{self.code}, reply lost"


class Record:
    """Exchanges as they end; read from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._number = 0
        self._arrived: dict[int, float] = {}
        self._ended: list[Exchange] = []

    def begin(self) -> int:
        """Return the number of a request that has just arrived."""
        with self._lock:
            self._number += 1
            self._arrived[self._number] = time.monotonic()
            return self._number

    def end(self, exchange: Exchange) -> None:
        """Keep what became of it."""
        with self._lock:
            self._ended.append(replace(exchange, arrived=self._arrived.pop(exchange.number)))

    def exchanges(self) -> list[Exchange]:
        """Return everything that has ended, in the order of arrival."""
        with self._lock:
            return sorted(self._ended, key=lambda exchange: exchange.number)
