"""The version of the installed distribution, for the command line of each program."""

import platform
from importlib.metadata import PackageNotFoundError, version


def version_text() -> str:
    """Return the versions of Bowline and of Python, in one line."""
    try:
        number = version("bowline")
    except PackageNotFoundError:  # run from a checkout that was never installed
        number = "(not installed)"
    return f"bowline {number}, Python {platform.python_version()}"
