"""The administrator's access to a cluster under load: own connections, retries, long lists in pages.

In a storm the API server rejects requests after seconds because of its load. That is not a reply about the object.
"""

import http.client
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

from bowline.localcluster.api import ApiClient
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.controlplane import ADMIN
from bowline.localcluster.errors import LocalApiError

# Distinguishes the object of a test from one that was created later with the same name.
_NONCE = "faults.example/nonce"
_PAGE = 250
_TRIES, _PAUSE_S = 60, 0.5


class Administrator(ApiClient):
    """Retries where the API server was overloaded; an object is created only once."""

    def get(self, path: str) -> Any:
        """The object or list at a path; LocalApiError if the API server denies it."""
        return _patiently(lambda: super(Administrator, self).get(path))

    def create(self, path: str, body: dict[str, Any], nonce: str) -> Any:
        """Create an object and return it. ``nonce``: an annotation whose value is unique.

        By it, an object that an attempt has created although the attempt failed is recognised.
        """

        def make() -> Any:
            try:
                return self.post(path, body)
            except LocalApiError as error:
                if error.status != HTTPStatus.CONFLICT:
                    raise
                existing = self.get(f"{path}/{body['metadata']['name']}")
                if (existing["metadata"].get("annotations") or {}).get(nonce) != body["metadata"]["annotations"][
                    nonce
                ]:
                    raise
                return existing

        return _patiently(make)


def _patiently(ask: Callable[[], Any]) -> Any:
    for _ in range(_TRIES):
        try:
            return ask()
        except (LocalApiError, OSError, http.client.HTTPException) as error:
            if not is_busy(error):
                raise
        time.sleep(_PAUSE_S)
    return ask()


def is_busy(error: Exception) -> bool:
    """Return whether the API server was overloaded, as opposed to a denied request."""
    if isinstance(error, LocalApiError):
        return error.status == HTTPStatus.TOO_MANY_REQUESTS or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return True


def create_once(api: Administrator, path: str, body: dict[str, Any], annotations: Mapping[str, str]) -> str:
    """Create an object with these annotations; return its UID."""
    body["metadata"]["annotations"] = {**annotations, _NONCE: uuid.uuid4().hex}
    return str(api.create(path, body, _NONCE)["metadata"]["uid"])


def administrator(cluster: Cluster) -> Administrator:
    """Return a connection; the caller closes it."""
    pki = cluster.layout.pki
    port = urlsplit(cluster.server).port or 0
    return Administrator(port, pki / "ca.crt", pki / f"{ADMIN}.crt", pki / f"{ADMIN}.key")


def list_pages(api: ApiClient, path: str, selector: str = "", page: int = _PAGE) -> Iterator[dict[str, Any]]:
    """Yield the objects at a path page by page; ``selector`` is a query such as ``fieldSelector=...``."""
    query = "&".join(filter(None, (selector, f"limit={page}")))
    onward = ""
    while True:
        response = api.get(f"{path}?{query}{onward}")
        yield from response["items"]
        token = response["metadata"].get("continue")
        if not token:
            return
        onward = f"&continue={quote(token)}"
