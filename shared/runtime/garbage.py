"""Python's collector of reference cycles, set for a process that keeps much and makes few cycles.

The collector looks at all that is alive, again and again while the process grows: tens of milliseconds in which the
event loop stands still, to find nothing, because objects of the API server are trees. What is there once a process is
set up and its caches are filled stays anyway: it is put aside. What is freed by its last reference is freed as ever.
"""

import gc

# Youngest generation: by default 700, which a single pass allocates. Cycles are kept for that much longer.
_YOUNG = 10_000


def spare_what_stays() -> None:
    """Have the collector never look again at what is alive now; called when a phase of filling up is over."""
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    gc.collect()
    gc.freeze()
