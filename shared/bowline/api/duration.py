"""Durations in Kubernetes' notation: ``1s``, ``500ms``, ``2m30s``, ``1h``."""

import re
from datetime import timedelta

_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)")
_WHOLE = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ms|s|m|h))+")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
# Dates end with the year 9999, and a Lease counts its seconds in 32 bits, which is 68 years.
_LONGEST = timedelta(hours=438_000)


def parse_duration(text: str) -> timedelta:
    """Parse a duration. Raises ValueError naming the accepted form; also above 50 years."""
    if not isinstance(text, str) or not _WHOLE.fullmatch(text):
        raise ValueError("must be a duration such as 500ms, 10s, 2m30s or 1h")
    seconds = sum(float(number) * _SECONDS[unit] for number, unit in _PART.findall(text))
    if seconds > _LONGEST.total_seconds():
        raise ValueError("must be at most 438000h, which is 50 years")
    return timedelta(seconds=seconds)


def format_duration(duration: timedelta) -> str:
    """Format in the shortest notation: 90 s is ``1m30s``."""
    milliseconds = round(duration.total_seconds() * 1000)
    hours, milliseconds = divmod(milliseconds, 3_600_000)
    minutes, milliseconds = divmod(milliseconds, 60_000)
    seconds, milliseconds = divmod(milliseconds, 1000)
    parts = [(hours, "h"), (minutes, "m"), (seconds, "s"), (milliseconds, "ms")]
    return "".join(f"{number}{unit}" for number, unit in parts if number) or "0s"
