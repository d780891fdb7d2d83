"""What can go wrong with the local cluster, as one tree.

    LocalClusterError
    ├── AssetsError     a binary could not be supplied by any provider
    ├── StartError      a process did not come up, or ended early
    ├── CommandError    kubectl or helm ended with an error
    ├── ApiError        the API server refused one of our own requests
    └── RenderError     a rendered object cannot be run as a local process

Each message is meant for the person at the terminal: it says what was tried and what to do next.
"""


class LocalClusterError(Exception):
    """Base of everything this package raises on purpose."""


class AssetsError(LocalClusterError):
    """A binary could not be supplied; the message lists every provider and its reason."""


class StartError(LocalClusterError):
    """A process did not become ready; the message carries the tail of its log."""


class CommandError(LocalClusterError):
    """A command line tool ended with an error; the message carries what it said."""


class ApiError(LocalClusterError):
    """The API server answered one of the local cluster's own requests with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class RenderError(LocalClusterError):
    """A rendered object asks for something a local process cannot be given."""
