"""The environment of the reconciler in a storm: schedulers and users create, delete and replace thousands of pods.

Everything is derived from seeds. The spec of a request is stored when it is created, because it may be deleted at the
end; its result is compared with that.
"""

import random
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from http import HTTPStatus
from typing import Any

from bowline.api import names
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.errors import LocalApiError
from bowline.testing.builders import bind_request, pod
from tests.faults.administrator import Administrator, administrator, create_once
from tests.faults.plugins.fault_effects import EFFECT, GATE, REFUSE, WAKES
from tests.live import FLAKY

NAMESPACE = "storm"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
REQUESTS = f"/apis/{names.API_VERSION}/namespaces/{NAMESPACE}/{names.PLURAL}"
CONFIGMAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
EFFECTS = f"/api/v1/namespaces/{NAMESPACE}/secrets"
NODES, VANISHING = 20, 10
_SUBMITTERS = 4
# On a request whose wait ends only by its deadline.
NEVER_ENDS = "faults.example/never-ends"
_DELETION_S, _POLL_S = 300.0, 0.05
# The newest pods and requests are recreated: most older ones have ended.
_RECENT = 50


class Wait(Enum):
    """What a request waits for before it is bound."""

    NOTHING = "nothing"
    OPENS = "a gate that opens during the storm"
    NEVER = "a gate that never opens"


@dataclass(frozen=True, slots=True)
class Asked:
    """The relevant part of a request's spec."""

    pod_uid: str
    node: str
    refused: bool = False
    wait: Wait = Wait.NOTHING


@dataclass(slots=True)
class World:
    """Creates pods and requests, replaces some, opens gates, deletes nodes."""

    cluster: Cluster
    api: Administrator
    asked: dict[str, Asked] = field(default_factory=dict)
    pods: list[str] = field(default_factory=list)
    deleted_nodes: set[str] = field(default_factory=set)
    waits: Counter[Wait] = field(default_factory=Counter)
    last_nodes: dict[str, str] = field(default_factory=dict)  # of deleted pods, by UID
    _shut: deque[str] = field(default_factory=deque)  # pods whose requests' gates are to be opened

    def submit_all(self, count: int, seed: int) -> None:
        """Create the pods and their requests, over several connections."""

        def submit(first: int) -> None:
            api = administrator(self.cluster)
            try:
                for number in range(first, count, _SUBMITTERS):
                    self.submit(api, f"pod-{number}", random.Random(seed + number))  # noqa: S311 - repeatable
            finally:
                api.close()

        with ThreadPoolExecutor(_SUBMITTERS) as threads:
            list(threads.map(submit, range(_SUBMITTERS)))

    def submit(self, api: Administrator, name: str, rng: random.Random) -> None:
        """Create a pod and its request."""
        flaky = rng.random() < 0.1
        uid = create_once(api, PODS, pod(name, NAMESPACE), {FLAKY: str(rng.randint(1, 2))} if flaky else {})
        self.decide(api, name, uid, rng)
        self.pods.append(name)

    def decide(self, api: Administrator, name: str, uid: str, rng: random.Random) -> None:
        """Create the request, as a scheduler does."""
        wait = rng.choices((Wait.NOTHING, Wait.OPENS, Wait.NEVER), (0.87, 0.1, 0.03))[0]
        # Waiting requests lose their node more often.
        prefix, count = ("vanishing", VANISHING) if rng.random() < _odds(wait) else ("gpu-node", NODES)
        node = f"{prefix}-{rng.randrange(count)}"
        annotations = {EFFECT: "yes"} if rng.random() < 0.3 else {}
        is_refused = rng.random() < 0.05
        if is_refused:
            annotations[REFUSE] = "yes"
        if wait is not Wait.NOTHING:
            # Named after the pod, so that the gate of a recreated request may be open already.
            annotations[GATE] = _gate(name) if wait is Wait.OPENS else "never"
        made_request = bind_request(name, node, NAMESPACE, uid)
        if wait is Wait.NEVER:
            made_request["metadata"]["labels"] = {NEVER_ENDS: "yes"}
        request_uid = create_once(api, REQUESTS, made_request, annotations)
        self.asked[request_uid] = Asked(uid, node, is_refused, wait)
        self.waits[wait] += 1
        if wait is Wait.OPENS:
            self._shut.append(name)

    # --- disturbances: each returns whether it has done anything ---

    def remake_pod(self, rng: random.Random) -> bool:
        """A pod is deleted and recreated, with a new decision, as by a controller and a scheduler."""
        if not self.pods:
            return False
        api, name = self.api, rng.choice(self.pods[-_RECENT:])
        last = self._remove(f"{PODS}/{name}", {"gracePeriodSeconds": 0})
        self.last_nodes[last["metadata"]["uid"]] = last["spec"].get("nodeName", "")
        uid = create_once(api, PODS, pod(name, NAMESPACE), {})
        self._withdraw(name)
        self.decide(api, name, uid, rng)
        return True

    def remake_request(self, rng: random.Random) -> bool:
        """A scheduler changes its decision: the request is deleted and recreated for another node."""
        if not self.pods:
            return False
        name = rng.choice(self.pods[-_RECENT:])
        uid = self.api.get(f"{PODS}/{name}")["metadata"]["uid"]
        self._withdraw(name)
        self.decide(self.api, name, uid, rng)
        return True

    def vanish_node(self, _: random.Random) -> bool:
        """A node is deleted."""
        if len(self.deleted_nodes) == VANISHING:
            return False
        node = f"vanishing-{len(self.deleted_nodes)}"
        self.deleted_nodes.add(node)
        self.api.delete(f"/api/v1/nodes/{node}")
        return True

    def open_gates(self, _: random.Random) -> bool:
        """Open the gates of the requests until now; for some of them before their first read."""
        opened_count = 0
        while self._shut:
            name = self._shut[0]
            try:
                self.api.post(CONFIGMAPS, {"metadata": {"name": _gate(name), "labels": {WAKES: name}}})
            except LocalApiError as error:
                if error.status != HTTPStatus.CONFLICT:
                    raise
            self._shut.popleft()
            opened_count += 1
        return opened_count > 0

    def _withdraw(self, name: str) -> None:
        """Delete the request, if it exists, and wait until it is deleted."""
        try:
            self._remove(f"{REQUESTS}/{name}", {})
        except LocalApiError as error:
            if error.status != HTTPStatus.NOT_FOUND:
                raise

    def _remove(self, path: str, options: dict[str, Any]) -> Any:
        """Delete an object and wait until it is deleted; a new one with that name may be created meanwhile.

        Returns the reply: of a pod without a grace period its last state.
        """
        uid = self.api.get(path)["metadata"]["uid"]
        last = self.api.request("DELETE", path, {**options, "preconditions": {"uid": uid}})
        deadline = time.monotonic() + _DELETION_S
        while time.monotonic() < deadline:
            try:
                if self.api.get(path)["metadata"]["uid"] != uid:
                    return last
            except LocalApiError as error:
                if error.status == HTTPStatus.NOT_FOUND:
                    return last
                raise
            time.sleep(_POLL_S)
        raise AssertionError(f"{path} is not deleted: {self.api.get(path)}")


def _odds(wait: Wait) -> float:
    return 0.1 if wait is Wait.NOTHING else 0.4


def _gate(name: str) -> str:
    return f"gate-{name}"
