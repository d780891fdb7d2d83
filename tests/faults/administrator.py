"""The administrator's look at a cluster under load: own connections, answers waited for, long lists in pages.

In a storm the API server gives up on requests after seconds. Whoever judges must not take that for an answer.
"""

import http.client
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urlsplit

from localcluster.api import ApiClient
from localcluster.cluster import Cluster
from localcluster.controlplane import ADMIN
from localcluster.errors import ApiError

# Distinguishes an object of a test from another that has just been created with its name.
_NONCE = "faults.example/nonce"
_PAGE = 250
_TRIES, _PAUSE_S = 60, 0.5


class Administrator(ApiClient):
    """Asks again where the API server had no time; what is to be made is made once."""

    def get(self, path: str) -> Any:
        """The object or list at a path; ApiError if the API server refuses."""
        return _patiently(lambda: super(Administrator, self).get(path))

    def create(self, path: str, body: dict[str, Any], nonce: str) -> Any:
        """Create an object and return it. ``nonce``: an annotation of it that is like no other's.

        By it an object that a try has made, though it was told to have failed, is known from another by that name.
        """

        def make() -> Any:
            try:
                return self.post(path, body)
            except ApiError as error:
                if error.status != HTTPStatus.CONFLICT:
                    raise
                found = self.get(f"{path}/{body['metadata']['name']}")
                if (found["metadata"].get("annotations") or {}).get(nonce) != body["metadata"]["annotations"][nonce]:
                    raise
                return found

        return _patiently(make)


def _patiently(ask: Callable[[], Any]) -> Any:
    for _ in range(_TRIES):
        try:
            return ask()
        except (ApiError, OSError, http.client.HTTPException) as error:
            if not is_busy(error):
                raise
        time.sleep(_PAUSE_S)
    return ask()


def is_busy(error: Exception) -> bool:
    """Return whether the API server had no time for a request, as opposed to having refused it."""
    if isinstance(error, ApiError):
        return error.status == HTTPStatus.TOO_MANY_REQUESTS or error.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return True


def create_once(api: Administrator, path: str, body: dict[str, Any], annotations: Mapping[str, str]) -> str:
    """Create an object with these annotations; return its UID."""
    body["metadata"]["annotations"] = {**annotations, _NONCE: uuid.uuid4().hex}
    return str(api.create(path, body, _NONCE)["metadata"]["uid"])


def administrator(cluster: Cluster) -> Administrator:
    """Return a connection; whoever is given it closes it."""
    pki = cluster.layout.pki
    port = urlsplit(cluster.server).port or 0
    return Administrator(port, pki / "ca.crt", pki / f"{ADMIN}.crt", pki / f"{ADMIN}.key")


def listed(api: ApiClient, path: str, selector: str = "", page: int = _PAGE) -> Iterator[dict[str, Any]]:
    """Yield the objects at a path page by page; ``selector`` is a query such as ``fieldSelector=...``."""
    query = "&".join(filter(None, (selector, f"limit={page}")))
    onward = ""
    while True:
        found = api.get(f"{path}?{query}{onward}")
        yield from found["items"]
        token = found["metadata"].get("continue")
        if not token:
            return
        onward = f"&continue={quote(token)}"
