"""Tells the person who waits which binary is being got, from where, and for how long.

Lines go to standard error, so that a command's own output stays usable in a pipe. Progress holds no
decisions: leaving it out changes nothing but the screen.
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
        """Seconds since this progress was made."""
        return time.monotonic() - self._started

    def say(self, text: str) -> None:
        """One line; a terminal that went away is no reason to stop."""
        if self._quiet:
            return
        try:
            print(f"assets [{self.elapsed_s:5.1f}s] {text}", file=self._stream, flush=True)
        except OSError:
            self._quiet = True
