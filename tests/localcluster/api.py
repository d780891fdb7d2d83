"""A small synchronous client for setting up the local cluster, as its administrator.

It avoids a kubectl process per object, for example for a thousand nodes. It is not for Bowline's processes: those use
shared.kube, with their ServiceAccounts.
"""

import http.client
import json
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.localcluster.errors import ApiError
from tests.localcluster.flags import LOOPBACK

_TIMEOUT_S = 30.0


class ApiClient:
    """Requests with a client certificate over one kept connection; thread-safe.

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
        self._headers = {"Accept": "application/json", **(headers or {})}
        self._timeout_s = timeout_s
        self._context = ssl.create_default_context(cafile=str(ca))
        self._context.load_cert_chain(certificate, key)
        self._lock = threading.Lock()
        self._connection: http.client.HTTPSConnection | None = None

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
        """Return the decoded response. Raises ApiError for status 400 and above, OSError or HTTPException without a
        response.
        """
        payload = None if body is None else json.dumps(body).encode()
        headers = self._headers | ({} if payload is None else {"Content-Type": content_type})
        with self._lock:
            status, data = self._exchange(method, path, payload, headers)
        if status >= 400:
            raise ApiError(status, _message(data))
        return _decode(data)

    def close(self) -> None:
        """Close the kept connection."""
        with self._lock:
            self._drop()

    def _exchange(self, method: str, path: str, payload: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        # The kept connection may have been closed (idle timeout, API server restart); then the request is sent once
        # more on a new one. A create that was applied before fails with 409.
        is_reused = self._connection is not None
        try:
            return self._send(method, path, payload, headers)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError, ssl.SSLError):
            if not is_reused:
                raise
            return self._send(method, path, payload, headers)

    def _send(self, method: str, path: str, payload: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPSConnection(
                LOOPBACK, self._port, timeout=self._timeout_s, context=self._context
            )
        try:
            self._connection.request(method, path, payload, headers)
            response = self._connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            self._drop()
            raise

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


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
