"""A small synchronous client for setting up the local cluster, as its administrator: paths and JSON, no models.

It avoids a kubectl process per object, for example for a thousand nodes. It is not for Bowline's processes: those use
bowline.kube, with their ServiceAccounts.
"""

import json
import ssl
import threading
import weakref
from collections.abc import Mapping
from http.client import BadStatusLine, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.flags import LOOPBACK

_TIMEOUT_S = 30.0
# In the audit log, the calls of the administrator.
USER_AGENT = "bowline-localcluster"
# The API server has closed the kept connection.
_CLOSED = (BadStatusLine, BrokenPipeError, ConnectionResetError, ssl.SSLEOFError, ssl.SSLZeroReturnError)


class ApiClient:
    """Requests with a client certificate over one kept connection of each thread.

    `headers` are sent with every request, for example to impersonate another user.
    """

    def __init__(
        self,
        port: int,
        ca: Path,
        certificate: Path,
        key: Path,
        *,
        timeout_s: float = _TIMEOUT_S,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._port = port
        self._tls = ssl.create_default_context(cafile=str(ca))
        self._tls.load_cert_chain(certificate, key)
        self._headers = {"Accept": "application/json", "User-Agent": USER_AGENT, **(headers or {})}
        self._timeout_s = timeout_s
        self._local = threading.local()
        self._connections: list[HTTPSConnection] = []
        self.close = weakref.finalize(self, _close, self._connections)

    def get(self, path: str) -> Any:
        """The object or list at a path."""
        return self.request("GET", path)

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Create an object."""
        return self.request("POST", path, body)

    def delete(self, path: str) -> Any:
        """Delete an object."""
        return self.request("DELETE", path)

    def patch(self, path: str, body: Any, content_type: str = "application/merge-patch+json") -> Any:
        """Patch an object, by default with a merge patch."""
        return self.request("PATCH", path, body, content_type)

    def request(self, method: str, path: str, body: Any = None, content_type: str = "application/json") -> Any:
        """Return the decoded response. Raises LocalApiError for status 400 and above, ConnectionError without one.

        Where the kept connection is closed, the request is sent once more: a create that was applied before fails
        with 409. No status is retried, tests assert them.
        """
        headers = self._headers | {"Content-Type": content_type}
        content = None if body is None else json.dumps(body).encode()
        try:
            try:
                status, data = self._exchange(method, path, content, headers)
            except _CLOSED:
                status, data = self._exchange(method, path, content, headers)
        except (OSError, HTTPException) as error:
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        if status >= 400:
            raise LocalApiError(status, _message(data))
        return _decode(data)

    def _exchange(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes]:
        connection: HTTPSConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = HTTPSConnection(LOOPBACK, self._port, timeout=self._timeout_s, context=self._tls)
            self._local.connection = connection
            self._connections.append(connection)
        try:
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            return response.status, response.read()
        except BaseException:
            connection.close()  # the next request opens it again
            raise


def _close(connections: list[HTTPSConnection]) -> None:
    for connection in connections:
        connection.close()


def _decode(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        # The health endpoints answer in plain text.
        return data.decode("utf-8", "replace")


def _message(data: bytes) -> str:
    body = _decode(data)
    if isinstance(body, dict):
        return str(body.get("message", body))
    return str(body)[:500]
