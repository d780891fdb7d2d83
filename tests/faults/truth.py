"""An observer that believes nothing: it checks every claim of the reconciler when it is made.

Claims are the event Bound, the pod condition PodBound=True, the request's phase Succeeded and conditions Bound=True
and RolledBack=True. Watches of different resources have no common order, so a claim is not held against what another
watch has shown, but against a live GET; only of a pod that is gone, against the observer's own history of all pods.

Independent of Bowline's code on purpose: its own connections, straight to the API server, and the standard library.
"""

import http.client
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any
from urllib.parse import urlencode, urlsplit

from localcluster.api import ApiClient
from localcluster.cluster import Cluster
from localcluster.controlplane import ADMIN
from localcluster.errors import ApiError
from shared.api import names

PODS = "/api/v1/pods"
REQUESTS = f"/apis/{names.API_VERSION}/{names.PLURAL}"
EVENTS = "/apis/events.k8s.io/v1/events"
# A watch ends so often, to see whether the observer is to stop; it goes on where it was.
_WATCH_S = 1
_HISTORY_S = 30.0

# What is left of a request's effects, by its namespace and UID; for RolledBack.
Leftovers = Callable[[ApiClient, str, str], list[str]]


@dataclass(frozen=True, slots=True)
class Claim:
    """Somebody (``who``) says of a pod that it is on this node; as ``kind`` of claim, for the count."""

    kind: str
    who: str
    namespace: str
    pod: str
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class UndoneClaim:
    """A request says that nothing of its preparations is left."""

    who: str
    namespace: str
    uid: str
    kind: str = "RolledBack=True"


AnyClaim = Claim | UndoneClaim


ClaimsOf = Callable[[dict[str, Any]], list[AnyClaim]]


@dataclass(frozen=True, slots=True)
class Sighting:
    """What the observer's own watch has last shown of a pod."""

    node: str
    gone: bool


class TruthObserver:
    """Watches from ``with`` on; ``check`` raises at the first false claim.

    Claims that stood before are not judged: what they were about may have gone unseen.
    """

    def __init__(self, cluster: Cluster, leftovers: Leftovers) -> None:
        self.checked: dict[str, int] = {}
        self._cluster = cluster
        self._leftovers = leftovers
        self._history: dict[str, Sighting] = {}
        self._judged: set[AnyClaim] = set()
        self._false: list[str] = []
        self._stop = threading.Event()
        sources = {PODS: claims_of_pod, REQUESTS: claims_of_request, EVENTS: claims_of_event}
        self._ready = [threading.Event() for _ in sources]
        self._threads = [
            threading.Thread(target=self._follow, args=(path, claims, ready), name=f"truth of {path}", daemon=True)
            for (path, claims), ready in zip(sources.items(), self._ready, strict=True)
        ]

    def __enter__(self) -> "TruthObserver":
        for thread, ready in zip(self._threads, self._ready, strict=True):
            thread.start()
            assert ready.wait(_HISTORY_S), f"{thread.name} did not begin"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if error is None:
            self.check()

    def check(self) -> None:
        """Raise if anything false has been said so far, or the observer itself has failed."""
        assert not self._false, "\n".join(self._false)

    def bound(self) -> dict[str, str]:
        """Return the node of every pod ever seen on one, by UID."""
        return {uid: sighting.node for uid, sighting in list(self._history.items()) if sighting.node}

    # --- watching ---

    def _follow(self, path: str, claims: ClaimsOf, ready: threading.Event) -> None:
        try:
            api = self._client()
            try:
                found = api.get(path)
                version = found["metadata"]["resourceVersion"]
                for item in found["items"]:
                    self._note(path, item, gone=False)
                    self._judged.update(claims(item))
                ready.set()
                while not self._stop.is_set():
                    for event in self._watch(path, version):
                        if event["type"] == "ERROR":
                            # An expired place would be a hole in the history: better no verdict than a wrong one.
                            raise RuntimeError(f"the watch of {path} was lost: {event['object']}")
                        version = event["object"]["metadata"]["resourceVersion"]
                        if event["type"] != "BOOKMARK":
                            self._take(api, path, event["object"], claims, gone=event["type"] == "DELETED")
                # What the last watch has not shown any more is still stored.
                for item in api.get(path)["items"]:
                    self._take(api, path, item, claims, gone=False)
            finally:
                api.close()
        except Exception as error:  # noqa: BLE001 - an observer that has failed has seen nothing
            self._false.append(f"the observer of {path} has failed: {error!r}")
            ready.set()

    def _note(self, path: str, item: dict[str, Any], *, gone: bool) -> None:
        if path == PODS:
            self._history[item["metadata"]["uid"]] = Sighting(item["spec"].get("nodeName", ""), gone)

    def _take(self, api: ApiClient, path: str, item: dict[str, Any], claims: ClaimsOf, *, gone: bool) -> None:
        self._note(path, item, gone=gone)
        for claim in claims(item):
            if claim in self._judged:
                continue
            self._judged.add(claim)
            self.checked[claim.kind] = self.checked.get(claim.kind, 0) + 1
            fault = self._fault(api, claim)
            if fault:
                self._false.append(f"{claim.who}: {claim.kind}, but {fault}")

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
            while line := response.readline():
                yield json.loads(line)
        finally:
            connection.close()

    def _client(self) -> ApiClient:
        pki = self._cluster.layout.pki
        port = urlsplit(self._cluster.server).port or 0
        return ApiClient(port, pki / "ca.crt", pki / f"{ADMIN}.crt", pki / f"{ADMIN}.key")

    # --- judging ---

    def _fault(self, api: ApiClient, claim: AnyClaim) -> str:
        """Return what is wrong with a claim; empty if nothing is."""
        if isinstance(claim, UndoneClaim):
            left = self._leftovers(api, claim.namespace, claim.uid)
            return f"left are {', '.join(left)}" if left else ""
        node = self._node_of(api, claim)
        if node and node == (claim.node or node):
            return ""
        return f"pod {claim.namespace}/{claim.pod} ({claim.uid}) is on {node or 'no node'}"

    def _node_of(self, api: ApiClient, claim: Claim) -> str:
        """Return where the pod is or, if it is gone, was; empty for nowhere."""
        try:
            pod = api.get(f"/api/v1/namespaces/{claim.namespace}/pods/{claim.pod}")
        except ApiError as error:
            if error.status != 404:
                raise
        else:
            if pod["metadata"]["uid"] == claim.uid:
                return str(pod["spec"].get("nodeName", ""))
        # Gone: our own watch will show its end, and with that all that was ever true of it.
        deadline = time.monotonic() + _HISTORY_S
        while not (sighting := self._history.get(claim.uid, Sighting("", gone=False))).gone:
            if time.monotonic() > deadline:
                return ""
            time.sleep(0.01)
        return sighting.node


def claims_of_pod(pod: dict[str, Any]) -> list[AnyClaim]:
    """Return what a pod's condition says; it names no node, any will do."""
    metadata = pod["metadata"]
    if _condition(pod, names.CONDITION_POD_BOUND) != "True":
        return []
    who = f"pod {metadata['namespace']}/{metadata['name']}"
    return [Claim("PodBound=True", who, metadata["namespace"], metadata["name"], metadata["uid"], "")]


def claims_of_request(request: dict[str, Any]) -> list[AnyClaim]:
    """Return what a request's phase and conditions say."""
    metadata, spec = request["metadata"], request["spec"]
    namespace, who = metadata["namespace"], f"request {metadata['namespace']}/{metadata['name']}"
    owners = [owner["uid"] for owner in metadata.get("ownerReferences") or () if owner["kind"] == "Pod"]
    uid = spec.get("podUID") or (owners[0] if owners else "")
    kinds = {
        "Succeeded": (request.get("status") or {}).get("phase") == "Succeeded",
        "Bound=True": _condition(request, "Bound") == "True",
    }
    said = [kind for kind, is_said in kinds.items() if is_said]
    claims: list[AnyClaim] = [
        Claim(kind, who, namespace, spec["podName"], uid, spec["selectedNode"]) for kind in said
    ]
    if _condition(request, "RolledBack") == "True":
        claims.append(UndoneClaim(who, namespace, metadata["uid"]))
    return claims


def claims_of_event(event: dict[str, Any]) -> list[AnyClaim]:
    """Return what an event of ours says."""
    about = event.get("regarding") or {}
    if event.get("reportingController") != names.EVENT_SOURCE or event.get("reason") != "Bound":
        return []
    node, who = event["note"].removeprefix("bound to node "), f"event {event['metadata']['name']}"
    return [Claim("event Bound", who, about["namespace"], about["name"], about["uid"], node)]


def _condition(obj: dict[str, Any], kind: str) -> str:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((str(c["status"]) for c in conditions if c["type"] == kind), "")
