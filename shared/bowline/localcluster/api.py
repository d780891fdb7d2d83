"""A small synchronous client for setting up the local cluster, as its administrator: paths and JSON, no models.

It avoids a kubectl process per object, for example for a thousand nodes. It is not for Bowline's processes: those use
bowline.kube, with their ServiceAccounts.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes.client
import urllib3

from bowline.localcluster.errors import LocalApiError
from bowline.localcluster.flags import LOOPBACK

_TIMEOUT_S = 30.0
# The API server may have closed the kept connection: then the request is sent once more. A create that was applied
# before fails with 409. No status is retried: tests assert them.
_RETRIES = urllib3.Retry(1, allowed_methods=None, redirect=False, status=0, respect_retry_after_header=False)


class ApiClient:
    """Requests with a client certificate over kept connections; thread-safe.

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
        self._server = f"https://{LOOPBACK}:{port}"
        configuration = kubernetes.client.Configuration(
            host=self._server,
            ssl_ca_cert=str(ca),
            cert_file=str(certificate),
            key_file=str(key),
            retries=_RETRIES,
            no_proxy=LOOPBACK,
        )
        self._headers = {"Accept": "application/json", **(headers or {})}
        self._timeout_s = timeout_s
        self._client = kubernetes.client.ApiClient(configuration)

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
        """Return the decoded response. Raises LocalApiError for status 400 and above, ConnectionError without one."""
        headers = self._headers | {"Content-Type": content_type}
        try:
            response = self._client.call_api(
                method, self._server + path, headers, body, _request_timeout=self._timeout_s
            )
            data: bytes = response.read()  # type: ignore[no-untyped-call]
        except (urllib3.exceptions.HTTPError, kubernetes.client.ApiException) as error:
            raise ConnectionError(f"{method} {path}: {error}") from error
        if response.status >= 400:
            raise LocalApiError(response.status, _message(data))
        return _decode(data)

    def close(self) -> None:
        """Close the kept connections."""
        self._client.rest_client.close()


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
