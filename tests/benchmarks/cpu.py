"""CPU time of processes, as the kernel counts it."""

import os
from collections.abc import Mapping
from pathlib import Path


def cpu_s(pids: Mapping[str, int]) -> dict[str, float]:
    """Return the CPU time that each process has taken so far, user and system."""
    ticks = os.sysconf("SC_CLK_TCK")
    times = {}
    for name, pid in pids.items():
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        times[name] = (int(after_name[11]) + int(after_name[12])) / ticks
    return times
