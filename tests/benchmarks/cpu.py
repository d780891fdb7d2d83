"""CPU time of processes, as the kernel counts it."""

import time
from collections.abc import Mapping

# The clock of a process's own CPU time, in nanoseconds; its times in /proc are in hundredths of a second.
_SCHEDULED = 2


def cpu_s(pids: Mapping[str, int]) -> dict[str, float]:
    """Return the CPU time that each process has taken so far, user and system. Raises OSError for an ended one."""
    return {name: time.clock_gettime(~pid << 3 | _SCHEDULED) for name, pid in pids.items()}
