"""The short forms of a share's memory limit: `gpu-memory.limit` and `gpu-fraction.limit`. Pure.

They name no container: the limit is that of the container which has the share. The webhook adds the long form, which
names it and which the node or the binder reads. A short form that cannot be translated is an error, never ignored.
"""

from collections.abc import Iterator, Mapping
from decimal import Decimal

from bowline.api import names
from bowline.api.field_error import FieldError, annotation_path
from bowline.plugins.nv_fractions import rule_table
from bowline.plugins.nv_fractions.amounts import mebibytes_of, portion_of, whole_mebibytes

_LEAST_LIMIT = Decimal("0.00001")
SHORTHANDS = (names.GPU_MEMORY_LIMIT, names.GPU_FRACTION_LIMIT)


def long_form(shorthand: str, container: str) -> str:
    """Return the annotation with the same meaning that names the container."""
    if shorthand == names.GPU_MEMORY_LIMIT:
        return f"{names.NV_CONTAINER}{container}{names.NV_MEMORY_LIMIT}"
    return f"{names.KAI_CONTAINER}{container}{names.KAI_MEMORY_PORTION_LIMIT}"


def limits_of(annotations: Mapping[str, str], container: str) -> dict[str, str]:
    """Return the long forms of the pod's valid short forms."""
    return {
        long_form(shorthand, container): annotations[shorthand]
        for shorthand in SHORTHANDS
        if container and shorthand in annotations and not _problem(shorthand, annotations)
    }


def shorthand_errors(annotations: Mapping[str, str], container: str) -> Iterator[FieldError]:
    """Yield an error for each short form that cannot be translated, or that differs from its long form."""
    for shorthand in filter(annotations.__contains__, SHORTHANDS):
        problem = _problem(shorthand, annotations)
        long = long_form(shorthand, container)
        if not problem and annotations.get(long, annotations[shorthand]) != annotations[shorthand]:
            problem = f"must equal {long}, {annotations[long]}; remove one of them"
        if problem:
            yield FieldError(rule_table.LIMIT_SHORTHAND, annotation_path(shorthand), annotations[shorthand], problem)


def _problem(shorthand: str, annotations: Mapping[str, str]) -> str:
    value = annotations[shorthand]
    return (
        _memory_problem(value, annotations)
        if shorthand == names.GPU_MEMORY_LIMIT
        else _fraction_problem(value, annotations)
    )


def _fraction_problem(value: str, annotations: Mapping[str, str]) -> str:
    if names.GPU_FRACTION not in annotations:
        return f"needs {names.GPU_FRACTION}; the limit of an amount of memory is {names.GPU_MEMORY_LIMIT}"
    limit, fraction = portion_of(value), portion_of(annotations[names.GPU_FRACTION])
    is_limit = limit is not None and limit < 1 and (fraction is None or limit > fraction)
    if limit is None or not is_limit:
        return f"must be a decimal number above {names.GPU_FRACTION} and below 1; correct it"
    is_short = limit == limit.quantize(_LEAST_LIMIT)
    return "" if is_short else "must have at most 5 decimals, as KAI-Scheduler requires; round it"


def _memory_problem(value: str, annotations: Mapping[str, str]) -> str:
    if names.GPU_FRACTION in annotations:
        return f"cannot be combined with {names.GPU_FRACTION}, whose limit is {names.GPU_FRACTION_LIMIT}; use that"
    if not any(key == names.GPU_MEMORY or key.endswith(names.NV_MEMORY_REQUEST) for key in annotations):
        return f"needs {names.GPU_MEMORY}, the amount that it limits; add it"
    limit, amount = mebibytes_of(value), whole_mebibytes(annotations.get(names.GPU_MEMORY, ""))
    if limit >= max(amount, 1):
        return ""
    too_small = f"is less than {names.GPU_MEMORY}, {amount} MiB" if limit else "must be a quantity above 0"
    return f'{too_small}; it has a unit: for 4 GiB write "4Gi"'
