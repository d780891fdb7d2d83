"""Amounts of GPU memory and parts of a device, as the annotations of GPU fractioning write them. Pure.

Amounts of memory are quantities; the plugins that share devices count in MiB. Numbers are exact, never floats.
"""

from decimal import ROUND_CEILING, Decimal, InvalidOperation

from bowline.api.quantity import parse_quantity

_MIB = Decimal(2**20)
_BINARY_UNITS = ("Mi", "Gi", "Ti")
_MAX_PORTION_LENGTH = 32
# Of an int64.
_MAX_DIGITS = 19


def mebibytes_of(quantity: str) -> int:
    """Return the amount in MiB, rounded up; 0 if it is not a quantity above 0 of at most 2^63-1 bytes."""
    try:
        amount = parse_quantity(quantity)
    except ValueError:
        return 0
    is_amount = 0 < amount < 2**63
    return int((amount / _MIB).to_integral_value(ROUND_CEILING)) if is_amount else 0


def whole_mebibytes(text: str) -> int:
    """Return the whole number of MiB that ``gpu-memory`` has; 0 for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else 0


def quantity_text(mebibytes: int) -> str:
    """Return the amount as Kubernetes writes it: in the largest unit that needs no fraction."""
    unit = 0
    while mebibytes and mebibytes % 1024 == 0 and unit < len(_BINARY_UNITS) - 1:
        mebibytes, unit = mebibytes // 1024, unit + 1
    return f"{mebibytes}{_BINARY_UNITS[unit]}"


def portion_of(text: str) -> Decimal | None:
    """Return the portion above 0 in plain decimal or scientific notation; None for anything else."""
    is_plain = text.isascii() and text == text.strip() and "_" not in text and len(text) <= _MAX_PORTION_LENGTH
    try:
        portion = Decimal(text) if is_plain else None
    except InvalidOperation:
        return None
    return portion if portion is not None and portion.is_finite() and portion > 0 else None
