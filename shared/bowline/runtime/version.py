"""The version of the installed distribution, for command lines and metrics."""

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Final

# The name of what is installed: `bowline`, which is imported, is another project's on the index.
DISTRIBUTION: Final = "bowline-binder"


def bowline_version() -> str:
    """Return the distribution's version, or ``(not installed)`` in a checkout that was never installed."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:
        return "(not installed)"


def version_text() -> str:
    """Return the versions of Bowline and of Python, in one line."""
    return f"bowline {bowline_version()}, Python {platform.python_version()}"
