"""One request to an API server, and its errors: what the clients of a kubeconfig and of a pod have in common."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from bowline.kube.errors import from_response

# Of each call, in seconds: to connect, and to read. A create waits for all admission webhooks, up to 30 s.
REQUEST_TIMEOUT_S = (5, 40)


class ClusterError(Exception):
    """The cluster cannot be reached, or its API server gives no decision. The message states the remedy."""


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """An HTTP response of the API server."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Api(Protocol):
    """A client of one API server."""

    @property
    def server(self) -> str:
        """The address, for messages."""
        ...

    def send(self, method: str, path: str, body: object) -> ApiAnswer:
        """Send a request, with an encoded path; raises ClusterError without a response."""
        ...


class ApiException(Exception):  # noqa: N818 - the name that clients of Kubernetes give it
    """A response that is not 2xx."""

    def __init__(self, answer: ApiAnswer) -> None:
        super().__init__(str(from_response(answer.status, answer.headers, answer.body)))
        self.status = answer.status


def unreachable(server: str, cause: object) -> ClusterError:
    """Return the error of a request without a response."""
    remedy = "check the server, or choose another one with --kubeconfig or --context"
    return ClusterError(f"the API server {server} cannot be reached ({cause}); {remedy}")
