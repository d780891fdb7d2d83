"""An independent observer: it checks every claim of the reconciler when it is made.

Claims are the event Bound, the pod condition PodBound=True, the request's phase Succeeded and conditions Bound=True
and RolledBack=True. Watches of different resources have no common order, so a claim is not compared with events of
another watch, but with a live GET; only for a deleted pod, with the observer's own history of all pods.

One thread follows each watch and does nothing else; otherwise its resourceVersion would expire in a storm. Other
threads send the GETs. ``slowest_s`` is the longest time from a claim to its check.

Independent of Bowline's code on purpose: its own connections, direct to the API server, and the standard library.
"""

import http.client
import json
import queue
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Any
from urllib.parse import urlencode, urlsplit

from bowline.api import names
from bowline.localcluster.api import ApiClient
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.controlplane import ADMIN
from bowline.localcluster.errors import LocalApiError
from tests.faults.administrator import administrator, list_pages
from tests.faults.claims import (
    AnyClaim,
    Claim,
    ClaimsOf,
    UndoneClaim,
    claims_of_event,
    claims_of_pod,
    claims_of_request,
)

PODS = "/api/v1/pods"
REQUESTS = f"/apis/{names.API_VERSION}/{names.PLURAL}"
EVENTS = "/apis/events.k8s.io/v1/events"
# A watch ends so often, to check whether the observer must stop; the next continues where it ended.
_WATCH_S = 1
_HISTORY_S = 30.0
# A claim about a deleted pod waits for the watch of pods; the other threads continue meanwhile.
_CHECKERS = 4

# The remaining effects of a request, by its namespace and UID; for RolledBack.
Leftovers = Callable[[ApiClient, str, str], list[str]]


@dataclass(frozen=True, slots=True)
class Sighting:
    """The last state of a pod in the observer's own watch."""

    node: str
    is_deleted: bool


@dataclass(frozen=True, slots=True)
class Statement:
    """The new claims of one object, and when they were observed."""

    claims: Sequence[AnyClaim]
    seen_at: float


class TruthObserver:
    """Watches from ``with`` on; ``check`` raises at the first false claim.

    Earlier claims are not checked: their subjects may have been deleted unobserved.
    """

    def __init__(self, cluster: Cluster, leftovers: Leftovers) -> None:
        self.checked: Counter[str] = Counter()
        self.slowest_s = 0.0
        self._cluster = cluster
        self._leftovers = leftovers
        self._history: dict[str, Sighting] = {}
        self._checked: set[AnyClaim] = set()
        self._false: list[str] = []
        self._stop = threading.Event()
        self._lock = threading.Lock()
        # None ends a checking thread.
        self._statements: queue.SimpleQueue[Statement | None] = queue.SimpleQueue()
        sources = {PODS: claims_of_pod, REQUESTS: claims_of_request, EVENTS: claims_of_event}
        self._ready = [threading.Event() for _ in sources]
        self._followers = [
            threading.Thread(target=self._follow, args=(path, claims, ready), name=f"truth of {path}", daemon=True)
            for (path, claims), ready in zip(sources.items(), self._ready, strict=True)
        ]
        self._checkers = [
            threading.Thread(target=self._check_all, name=f"checker {number}", daemon=True)
            for number in range(_CHECKERS)
        ]

    def __enter__(self) -> "TruthObserver":
        for checker in self._checkers:
            checker.start()
        for thread, ready in zip(self._followers, self._ready, strict=True):
            thread.start()
            assert ready.wait(_HISTORY_S), f"{thread.name} did not start"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._followers:
            thread.join()
        for _ in self._checkers:
            self._statements.put(None)
        for checker in self._checkers:
            checker.join()
        if error is None:
            self.check()

    def check(self) -> None:
        """Raise if a claim was false, or the observer itself has failed."""
        assert not self._false, "\n".join(self._false)

    def bound(self) -> dict[str, str]:
        """Return the node of every pod that was ever observed on one, by UID."""
        return {uid: sighting.node for uid, sighting in list(self._history.items()) if sighting.node}

    # --- watching ---

    def _follow(self, path: str, claims: ClaimsOf, ready: threading.Event) -> None:
        try:
            api = administrator(self._cluster)
            try:
                page = api.get(path)
                version = page["metadata"]["resourceVersion"]
                for item in page["items"]:
                    self._note(path, item, is_deleted=False)
                    self._checked.update(claims(item))
                ready.set()
                while not self._stop.is_set():
                    for event in self._watch(path, version):
                        if event["type"] == "ERROR":
                            version = self._list_again(api, path, claims, event["object"])
                            break
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            self._take(path, event["object"], claims, is_deleted=event["type"] == "DELETED")
                # Objects of which the last watch delivered no event are still stored.
                for item in list_pages(api, path):
                    self._take(path, item, claims, is_deleted=False)
            finally:
                api.close()
        except Exception as error:  # noqa: BLE001 - a failed observer must fail the test
            self._false.append(f"the observer of {path} has failed: {error!r}")
            ready.set()

    def _list_again(self, api: ApiClient, path: str, claims: ClaimsOf, error: object) -> str:
        """Return the version of a new list of events: they have no watch cache, so a silence outlives its version,
        and each is stored for an hour. An expired version of other objects would be a gap in their history: better no
        result than a wrong one.
        """
        if path != EVENTS:
            raise RuntimeError(f"the watch of {path} was lost: {error}")
        page = api.get(path)
        for item in page["items"]:
            self._take(path, item, claims, is_deleted=False)
        return str(page["metadata"]["resourceVersion"])

    def _note(self, path: str, item: dict[str, Any], *, is_deleted: bool) -> None:
        if path == PODS:
            self._history[item["metadata"]["uid"]] = Sighting(item["spec"].get("nodeName", ""), is_deleted)

    def _take(self, path: str, item: dict[str, Any], claims: ClaimsOf, *, is_deleted: bool) -> None:
        self._note(path, item, is_deleted=is_deleted)
        # Each object's claims come from one watch, so that no two threads process the same one.
        new = [claim for claim in claims(item) if claim not in self._checked]
        if new:
            self._checked.update(new)
            self._statements.put(Statement(new, time.monotonic()))

    def _watch(self, path: str, version: str) -> Iterator[dict[str, Any]]:
        query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": _WATCH_S, "allowWatchBookmarks": "true"}
        address = urlsplit(self._cluster.server)
        pki = self._cluster.layout.pki
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / f"{ADMIN}.crt", pki / f"{ADMIN}.key")
        connection = http.client.HTTPSConnection(address.hostname or "", address.port, timeout=60, context=context)
        try:
            connection.request("GET", f"{path}?{urlencode(query)}", headers={"Accept": "application/json"})
            response = connection.getresponse()
            if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR or response.status == HTTPStatus.TOO_MANY_REQUESTS:
                return  # overloaded; the next watch continues at the same version
            while line := response.readline():
                yield json.loads(line)
        finally:
            connection.close()

    # --- checking ---

    def _check_all(self) -> None:
        api = administrator(self._cluster)
        try:
            while (statement := self._statements.get()) is not None:
                faults = self._faults(api, statement.claims)
                with self._lock:
                    self._false += faults
                    self.checked.update(claim.kind for claim in statement.claims)
                    self.slowest_s = max(self.slowest_s, time.monotonic() - statement.seen_at)
        except Exception as error:  # noqa: BLE001 - an unchecked claim must not count as true
            self._false.append(f"a checker has failed: {error!r}")
        finally:
            api.close()

    def _faults(self, api: ApiClient, claims: Sequence[AnyClaim]) -> list[str]:
        """Return what is wrong with the claims of one object. Those of the same pod need one GET."""
        faults = []
        node_of_uid: dict[str, str] = {}
        for claim in claims:
            if isinstance(claim, UndoneClaim):
                left = self._leftovers(api, claim.namespace, claim.uid)
                fault = f"left are {', '.join(left)}" if left else ""
            else:
                if claim.uid not in node_of_uid:
                    node_of_uid[claim.uid] = self._node_of(api, claim)
                fault = _fault(claim, node_of_uid[claim.uid])
            if fault:
                faults.append(f"{claim.source}: {claim.kind}, but {fault}")
        return faults

    def _node_of(self, api: ApiClient, claim: Claim) -> str:
        """Return the pod's node, also of a deleted pod; empty for none."""
        try:
            pod = api.get(f"/api/v1/namespaces/{claim.namespace}/pods/{claim.pod}")
        except LocalApiError as error:
            if error.status != 404:
                raise
        else:
            if pod["metadata"]["uid"] == claim.uid:
                return str(pod["spec"].get("nodeName", ""))
        # Deleted: the observer's own watch will deliver the deletion, and with it the complete history.
        deadline = time.monotonic() + _HISTORY_S
        while not (sighting := self._history.get(claim.uid, Sighting("", is_deleted=False))).is_deleted:
            if time.monotonic() > deadline:
                return ""
            time.sleep(0.01)
        return sighting.node


def _fault(claim: Claim, node: str) -> str:
    """Return what is wrong with a claim about a pod that is, or was, on that node; empty if it is true."""
    if node and node == (claim.node or node):
        return ""
    return f"pod {claim.namespace}/{claim.pod} ({claim.uid}) is on {node or 'no node'}"
