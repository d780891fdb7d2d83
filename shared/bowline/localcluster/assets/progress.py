"""Progress messages: which binary is being obtained, from which source, and the time since the start.

Written to standard error, so that a command's own output stays usable in a pipe. Has no effect besides.
"""

import sys
import time
from typing import TextIO


class Progress:
    """Writes one line per step, with the seconds since the start."""

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._started = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since this object was created."""
        return time.monotonic() - self._started

    def report(self, text: str) -> None:
        """Write one line; a closed terminal is ignored."""
        if self._quiet:
            return
        try:
            print(f"assets [{self.elapsed_s:5.1f}s] {text}", file=self._stream, flush=True)
        except OSError:
            self._quiet = True
