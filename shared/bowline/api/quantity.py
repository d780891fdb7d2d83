"""Kubernetes resource quantities (``2``, ``500m``, ``1.5Gi``, ``1e3``), parsed exactly as the API server does.

Python's number parsing accepts more (underscores, ``inf``, digits of other scripts) and less (``1k``), so the grammar
is explicit here. Values are Decimals: a quantity may exceed every float and every int64.
"""

import re
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, ROUND_UP, Context, Decimal

_GRAMMAR = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?:(?P<binary>[KMGTPE]i)|(?P<decimal>[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]+))?"
)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {suffix: Decimal(1024**power) for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)}
# Quantities with a binary suffix are capped at this value.
_MAX_BINARY = Decimal(2**63 - 1)
# Go reads the exponent as an int64 and keeps its lower 32 bits.
_MAX_EXPONENT = 2**63 - 1
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


def parse_quantity(value: object) -> Decimal:
    """Parse a quantity's JSON value: string, number or null. Raises ValueError for what the API server rejects.

    Null is 0, and so is a quantity without any digit (``m``, ``.``). Less than a billionth is rounded up to one.
    """
    if value is None:
        return Decimal(0)
    # A boolean is formatted as a word, which is not a quantity.
    text = str(value).strip(" ") if isinstance(value, str | int | float) else ""
    match = _GRAMMAR.fullmatch(text)
    if not match or not text:
        raise ValueError("is not a quantity such as 2, 500m, 1.5Gi or 1e3")
    sign, integer, part, binary, decimal, exponent = match.group(
        "sign", "whole", "part", "binary", "decimal", "exponent"
    )
    power = _DECIMAL.get(decimal, 0) if exponent is None else _exponent(exponent)
    number = Decimal(f"{sign}{integer or 0}.{part or 0}e{power}")
    if binary:
        number = _EXACT.multiply(number, _BINARY[binary])
    number = _rounded_up(number, places=9)
    if binary:
        number = max(-_MAX_BINARY, min(number, _MAX_BINARY))
    return number


def as_stored(quantity: Decimal) -> Decimal:
    """Round up to thousandths, as the API server does with each entry of a container's limits and requests."""
    return _rounded_up(quantity, places=3)


def _exponent(text: str) -> int:
    digits = text.lstrip("+-").lstrip("0") or "0"
    # The length first: int() has a length limit with an error of its own.
    if len(digits) > 19 or int(digits) > _MAX_EXPONENT:
        raise ValueError("is not a quantity: its exponent is too large")
    exponent = -int(digits) if text.startswith("-") else int(digits)
    return (exponent + 2**31) % 2**32 - 2**31


def _rounded_up(number: Decimal, places: int) -> Decimal:
    """Round away from zero. A number without finer digits is unchanged: expanding 1e2147483647 takes 2 GB."""
    finest = number.as_tuple().exponent
    if isinstance(finest, int) and finest < -places:
        return number.quantize(Decimal((0, (1,), -places)), ROUND_UP, _EXACT)
    return number
