"""The version of the installed distribution, for command lines and metrics."""

import platform
from importlib.metadata import PackageNotFoundError, version


def bowline_version() -> str:
    """Return the distribution's version, or ``(not installed)`` in a checkout that was never installed."""
    try:
        return version("bowline")
    except PackageNotFoundError:
        return "(not installed)"


def version_text() -> str:
    """Return the versions of Bowline and of Python, in one line."""
    return f"bowline {bowline_version()}, Python {platform.python_version()}"
