"""Which shares are too small to be limited. Pure."""

from collections.abc import Iterator

from shared.api import names
from shared.api.field_error import FieldError, annotation_path
from shared.api.meta import Object


def portion_faults(pod: Object) -> Iterator[FieldError]:
    """Yield an error for a fraction that a scheduler writes as the portion ``0.00``, from which no limit follows.

    A value that is not a number is reported by plugin gpu_request.
    """
    text = (pod["metadata"].get("annotations") or {}).get(names.GPU_FRACTION)
    if text is None:
        return
    try:
        portion = f"{float(text):.2f}"
    except ValueError:
        return
    if portion == "0.00":
        message = (
            "must be at least 0.005 while plugin hami_core limits the memory of shares: the scheduler writes it as a "
            f"portion of 0.00; ask for an amount of memory with {names.GPU_MEMORY} instead"
        )
        yield FieldError("hami_core/portion", annotation_path(names.GPU_FRACTION), text, message)
