"""Memory of a process that keeps much for long: Python's collector of reference cycles, and what C keeps of the freed.

The collector looks at all that is alive, again and again while the process grows: tens of milliseconds in which the
event loop stands still, to find nothing, because objects of the API server are trees. What is there once a process is
set up and its caches are filled stays anyway: it is put aside. What is freed by its last reference is freed as ever.

Filling up takes more than what stays: whole lists, page by page. The C library keeps what is freed of it, in case it
is wanted again, until it is asked to give it back.
"""

import ctypes
import gc

# Youngest generation: by default 700, which a single pass allocates. Cycles are kept for that much longer.
_YOUNG = 10_000


def spare_what_stays() -> None:
    """Have the collector never look again at what is alive now; called when a phase of filling up is over."""
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    gc.collect()
    gc.freeze()
    give_back()


def give_back() -> None:
    """Give freed memory back to the system, where the C library knows how to (glibc)."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
