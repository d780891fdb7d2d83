"""Errors of the local cluster. Each message is for the user at the terminal: what was attempted, what to do next."""


class LocalClusterError(Exception):
    """Base of the errors of this package."""


class AssetsError(LocalClusterError):
    """A binary could not be supplied; the message lists every provider and its reason."""


class StartError(LocalClusterError):
    """A process did not become ready; the message carries the tail of its log."""


class CommandError(LocalClusterError):
    """A command line tool ended with an error; the message contains its output."""


class LocalApiError(LocalClusterError):
    """The API server answered one of the local cluster's own requests with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class RenderError(LocalClusterError):
    """A rendered object requires something that is not available to a local process."""
