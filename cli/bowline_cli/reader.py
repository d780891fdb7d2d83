"""Reads of a cluster for `bowline explain` and `bowline check`: what may not be read is a value, not an error."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bowline.api.meta import Object, key_of, parse_time
from bowline.kube.errors import Unreadable
from bowline.kube.unreadable import reduced_page
from bowline_cli.cluster import ERROR_REPLIES, Api, call, call_raw
from bowline_cli.terminal import printable

_PAGE, _GROWTH = 500, 4
# Labels of what a release has.
COMPONENT = "app.kubernetes.io/component"
_BOWLINE = "app.kubernetes.io/name=bowline"
_METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


@dataclass(frozen=True, slots=True)
class Unread:
    """In place of what could not be read. ``reason``: usually the missing permission."""

    reason: str


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads raw objects by path. Methods raise one of ERROR_REPLIES, but for what is absent or not permitted."""

    api: Api

    def get(self, path: str) -> Any:
        """Return an object; None if it does not exist, or its kind is not served.

        Unread without the right, or if it is not decoded.
        """
        try:
            return self._read(path)
        except Unreadable as error:
            return Unread(f"{path} is not read: {error.message}")

    def list(self, path: str, **query: str | int) -> Any:
        """Return the objects of a list; none if its kind is not served; Unread without the right.

        ``query``: such as ``labelSelector``, ``fieldSelector`` and ``limit``.
        """
        try:
            answer = self._read(path, **query)
        except Unreadable:
            return self.pages(path, **{key: value for key, value in query.items() if key != "limit"})
        return answer if isinstance(answer, Unread) else (answer or {}).get("items") or ()

    def pages(self, path: str, **query: str | int) -> Any:
        """Return the objects of a list of any length, as ``list`` does; read page by page.

        An object that is not decoded is left out, and named on standard error.
        """
        objects: list[Object] = []
        token, limit = "", _PAGE
        while True:
            part = {**query, "limit": limit, **({"continue": token} if token else {})}
            try:
                answer = self._read(path, **part)
            except Unreadable as error:
                if limit > 1:
                    limit //= 2
                    continue
                answer = self._without_unreadable(path, error, **part)
            limit = min(_PAGE, limit * _GROWTH)
            if isinstance(answer, Unread):
                return answer
            objects += (answer or {}).get("items") or ()
            token = ((answer or {}).get("metadata") or {}).get("continue") or ""
            if not token:
                return objects

    def deployments(self, namespace: str) -> Any:
        """Return the Deployments of a release, as ``list`` does."""
        return self.list(f"/apis/apps/v1/namespaces/{namespace}/deployments", labelSelector=_BOWLINE)

    def _without_unreadable(self, path: str, error: Unreadable, **query: str | int) -> Any:
        """Return a page of one object, without it. Raises the error if the page has an unknown form."""
        body = call_raw(self.api, "GET", path, accept=_METADATA, **query)
        page = reduced_page(body)
        if page is None:
            raise error
        for item in page["items"]:
            name = printable(f"{path}: {key_of(item)}")
            print(
                f"not read: {name}: {error.message}; repair it, its managedFields too, or delete it", file=sys.stderr
            )
        return {**page, "items": ()}

    def _read(self, path: str, **query: str | int) -> Any:
        try:
            return call(self.api, "GET", path, **query)
        except ERROR_REPLIES as error:
            if error.code == 403:
                return Unread(f"missing permission: {error}")
            if error.code != 404:
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


def component_of(deployment: Object) -> str:
    """Return which component of a release the Deployment is; empty if it is none."""
    return str((deployment["metadata"].get("labels") or {}).get(COMPONENT) or "")


def leases_path(namespace: str) -> str:
    """Return the path of the namespace's Leases."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
