"""Settings of Python's cyclic garbage collector, for a process with many long-lived objects and few cycles.

The collector repeatedly scans all live objects while the process grows. That blocks the event loop for tens of
milliseconds and finds nothing, because API objects are trees. Objects that exist once the process is set up and its
caches are filled are permanent, so they are excluded from collection. Reference counting still frees them.
"""

import gc

# Threshold of the youngest generation; the default of 700 is reached in a single reconcile. Cycles live longer. The
# requests in progress are some 20,000 objects, which collections would scan again and again.
_YOUNG = 50_000


def freeze_startup_objects() -> None:
    """Exclude all objects that are alive now from collection; call it after a phase of filling caches."""
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])
    gc.collect()
    gc.freeze()
