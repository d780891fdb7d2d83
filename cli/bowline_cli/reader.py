"""Reads of a cluster for `bowline explain` and `bowline check`: what may not be read is a value, not an error."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bowline.api.meta import Object, parse_time
from bowline_cli.api import Api, ApiException
from bowline_cli.cluster import call, message_of

_PAGE = 500


@dataclass(frozen=True, slots=True)
class Unread:
    """In place of what could not be read. ``reason``: usually the missing permission."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads raw objects by path. Methods raise ApiException, but for what is absent or not permitted."""

    api: Api

    def get(self, path: str) -> Any:
        """Return an object; None if it does not exist, or its kind is not served; Unread without the right."""
        return self._read(path)

    def list(self, path: str, **query: str | int) -> Any:
        """Return the objects of a list; none if its kind is not served; Unread without the right.

        ``query``: such as ``labelSelector``, ``fieldSelector`` and ``limit``.
        """
        answer = self._read(path, **query)
        return answer if isinstance(answer, Unread) else (answer or {}).get("items") or ()

    def pages(self, path: str, **query: str | int) -> Any:
        """Return the objects of a list of any length, as ``list`` does; read page by page."""
        objects: list[Object] = []
        token = ""
        while True:
            answer = self._read(path, limit=_PAGE, **query, **({"continue": token} if token else {}))
            if isinstance(answer, Unread):
                return answer
            objects += (answer or {}).get("items") or ()
            token = ((answer or {}).get("metadata") or {}).get("continue") or ""
            if not token:
                return objects

    def _read(self, path: str, **query: str | int) -> Any:
        try:
            return call(self.api, "GET", path, **query)
        except ApiException as error:
            if error.status == 403:
                return Unread(f"missing permission: {message_of(error)}")
            if error.status != 404:
                raise
        return None


def acquired_at(lease: Object, now: datetime) -> datetime | None:
    """Return since when the holder of a Lease has it; None if it is not held, or not renewed within its duration.

    ``now``: the API server's time; the clock of the user's machine may be wrong.
    """
    spec = lease.get("spec") or {}
    renewed, duration = parse_time(spec.get("renewTime")), timedelta(seconds=spec.get("leaseDurationSeconds") or 0)
    if not spec.get("holderIdentity") or renewed is None or now - renewed > duration:
        return None
    return parse_time(spec.get("acquireTime")) or renewed


def readable(objects: Sequence[Object] | Unread) -> Sequence[Object]:
    """Return the objects; none if they could not be read."""
    return () if isinstance(objects, Unread) else objects


def leases_path(namespace: str) -> str:
    """Return the path of the namespace's Leases."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
