"""Schedulers with one mistake each, the one that the argument names, in a part of the example scheduler."""

import json
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "scheduler" / "scheduler.py"
REQUESTS = 'requests = {r["spec"].get("podUID"): r for r'
REQUEST = 'requests.get(pod["metadata"]["uid"], {})'
# Edits of the example's text: what is replaced, by what.
EDITS: dict[str, dict[str, str]] = {
    "knows_bare_names": {
        REQUESTS: 'requests = {r["spec"].get("podName"): r for r',
        REQUEST: 'requests.get(pod["metadata"]["name"], {})',
    },
    "allocates_nothing": {'"resourceClaims" in pod["spec"]': "False"},
}


def edited_example(mistake: str) -> dict[str, Any]:
    text = EXAMPLE.read_text()
    for old, new in EDITS.get(mistake, {}).items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    module: dict[str, Any] = {"__name__": "scheduler"}
    exec(compile(text, str(EXAMPLE), "exec"), module)  # noqa: S102 - a text of this repository
    return module


mistake = sys.argv[1]
parts = edited_example(mistake)
config, client, run = parts["config"], parts["client"], parts["run"]
needs, allows, take = parts["needs"], parts["allows"], parts["take"]
place, share, react, refuse = parts["place"], parts["share"], parts["react"], parts["refuse"]
decide = parts["decide"]
OTHER = "gpu-node-1"


class Core:
    """The API of pods; ``change`` changes each pod of a list, or leaves it out."""

    def __init__(self, change: Any) -> None:
        self._api, self._change = client.CoreV1Api(), change

    def __getattr__(self, method: str) -> Any:
        return getattr(self._api, method)

    def list_pod_for_all_namespaces(self, **options: Any) -> Any:
        reply = self._api.list_pod_for_all_namespaces(**options)
        if options.get("watch"):
            return reply
        listing = json.loads(reply.data)
        pods = [pod for pod in listing["items"] if self._change(pod)]
        return SimpleNamespace(data=json.dumps({**listing, "items": pods}).encode())


class ExitingAtADenial:
    """The API of custom objects, for a scheduler that takes a denial as the end."""

    def __init__(self) -> None:
        self._api = client.CustomObjectsApi()

    def __getattr__(self, method: str) -> Any:
        return getattr(self._api, method)

    def create_namespaced_custom_object(self, **request: Any) -> Any:
        try:
            return self._api.create_namespaced_custom_object(**request)
        except client.ApiException as error:
            sys.exit(error.body)


class RepeatingAtOnce(ExitingAtADenial):
    """The API of custom objects, for a scheduler that repeats a denied request without a pause."""

    def create_namespaced_custom_object(self, **request: Any) -> Any:
        for _ in range(20):
            try:
                return self._api.create_namespaced_custom_object(**request)
            except client.ApiException as error:
                denial = error
        raise denial


class WithoutOwner(RepeatingAtOnce):
    """The API of custom objects, for a scheduler whose requests have no owner."""

    def create_namespaced_custom_object(self, **request: Any) -> Any:
        request["body"]["metadata"].pop("ownerReferences")
        return self._api.create_namespaced_custom_object(**request)


class DeletingEachFailure(ExitingAtADenial):
    """The API of custom objects, for a scheduler that cleans up all failed requests, also those of others."""

    phase = "Failed"

    def list_cluster_custom_object(self, **options: Any) -> Any:
        reply = self._api.list_cluster_custom_object(**options)
        for request in json.loads(reply.data)["items"]:
            metadata = request["metadata"]
            if self.is_due(request):
                target = parts["API"] | {"namespace": metadata["namespace"], "name": metadata["name"]}
                self._api.delete_namespaced_custom_object(**target, **self.options(metadata))
        return reply

    def options(self, metadata: Any) -> Any:
        return {"body": {"preconditions": {"uid": metadata["uid"]}}}

    def is_due(self, request: Any) -> bool:
        return bool(request.get("status", {}).get("phase", "Pending") == self.phase)


class DeletingSuccessesByName(DeletingEachFailure):
    """The API of custom objects, for a scheduler that cleans up after bound pods without a precondition."""

    phase = "Succeeded"

    def options(self, metadata: Any) -> Any:
        return {"grace_period_seconds": 0}


class DecidingTwice(DeletingEachFailure):
    """The API of custom objects, for a scheduler that decides once more for a pod before the first one has ended."""

    phase = "Pending"

    def create_namespaced_custom_object(self, **request: Any) -> Any:
        created = self._api.create_namespaced_custom_object(**request)
        first_uids.setdefault(created["metadata"]["name"], created["metadata"]["uid"])
        return created

    def is_due(self, request: Any) -> bool:
        return super().is_due(request) and request["metadata"]["uid"] in first_uids.values()


class Moving(ExitingAtADenial):
    """The API of custom objects, for a scheduler that changes its decisions."""

    def create_namespaced_custom_object(self, **request: Any) -> Any:
        reply = self._api.create_namespaced_custom_object(**request)
        target = parts["API"] | {"namespace": request["namespace"], "name": request["body"]["metadata"]["name"]}
        with suppress(client.ApiException):
            self._api.patch_namespaced_custom_object(**target, body={"spec": {"selectedNode": OTHER}})
            self._api.patch_namespaced_custom_object(**target, body={"spec": {"selectedNode": "gpu-node-0"}})
        return reply


class Binding(ExitingAtADenial):
    """The API of custom objects, for a scheduler that binds as well."""

    def create_namespaced_custom_object(self, **request: Any) -> Any:
        reply, spec = self._api.create_namespaced_custom_object(**request), request["body"]["spec"]
        target = {"apiVersion": "v1", "kind": "Node", "name": spec["selectedNode"]}
        body = {"metadata": {"name": spec["podName"]}, "target": target}
        with suppress(client.ApiException):
            client.CoreV1Api().create_namespaced_binding(request["namespace"], body, _preload_content=False)
        return reply


class Polling(ExitingAtADenial):
    """The API of custom objects, for a scheduler without a pause."""

    def create_namespaced_custom_object(self, **request: Any) -> Any:
        return self._api.create_namespaced_custom_object(**request)

    def list_cluster_custom_object(self, **options: Any) -> Any:
        for _ in range(200):
            reply = self._api.list_cluster_custom_object(**options)
        return reply


def repeating_events(core: Any, pod: Any, why: str) -> Any:
    for number in range(20):
        pod["status"]["conditions"] = []
        refuse(core, pod, f"{why} {number}")


def without_condition(core: Any, pod: Any, why: str) -> Any:
    core_without_patch = SimpleNamespace(
        patch_namespaced_pod_status=lambda *_: None, create_namespaced_event=core.create_namespaced_event
    )
    return refuse(core_without_patch, pod, why)


banned: set[str] = set()


def to_unbanned_nodes(pod: Any, nodes: Any, free: Any, used: Any) -> Any:
    banned.update(json.loads(pod["metadata"].get("annotations", {}).get(parts["AVOID"], "{}")))
    return place(pod, {name: node for name, node in nodes.items() if name not in banned}, free, used)


def in_gibibytes(pod: Any, node: Any) -> Any:
    part, number = share(pod, node)
    return part / 1024 if "gpu-memory" in pod["metadata"].get("annotations", {}) else part, number


def of_one_device(pod: Any, node: Any) -> Any:
    part, number = share(pod, node)
    return part, min(number, 1)


def to_any_node(core: Any, custom: Any, pod: Any, request: Any) -> Any:
    core_without_patch = SimpleNamespace(patch_namespaced_pod=lambda *_: None)
    return react(core_without_patch, custom, pod, request)


def deleting_the_pod(core: Any, custom: Any, pod: Any, request: Any) -> Any:
    if request.get("status", {}).get("phase") == "Failed":
        core.delete_namespaced_pod(pod["metadata"]["name"], pod["metadata"]["namespace"])


def of_whole_devices(pod: Any, node: Any, groups: Any, free: Any, used: Any) -> Any:
    return take(pod, node, [], free, used)


def to_any_group(pod: Any, nodes: Any, free: Any, used: Any) -> Any:
    groups = [group for parts_of_node in used.values() for group in parts_of_node]
    node, own = place(pod, nodes, free, used)
    return node, (groups + own)[: len(own)] if node else own


def to_a_full_group(pod: Any, nodes: Any, free: Any, used: Any) -> Any:
    node, groups = place(pod, nodes, free, used)
    if node is None and share(pod, nodes[OTHER])[0]:
        return OTHER, list(used[OTHER])[:1]
    return node, groups


def as_own(pod: Any) -> bool:
    pod["spec"]["schedulerName"] = parts["NAME"]
    return True


def to_the_first_node(pod: Any, node: Any) -> Any:
    parts["AVOID_S"] = -1
    return node["metadata"]["name"] == "gpu-node-0"


def without_cordons(pod: Any, node: Any) -> Any:
    return allows(pod, {**node, "spec": {**node["spec"], "unschedulable": False}})


def of_main_containers(pod: Any) -> Any:
    return needs({**pod, "spec": {**pod["spec"], "initContainers": []}})


def of_the_largest_container(pod: Any) -> Any:
    main = needs({**pod, "spec": {**pod["spec"], "initContainers": []}})
    for container in pod["spec"].get("initContainers", []):
        main |= needs({**pod, "spec": {**pod["spec"], "containers": [container], "initContainers": []}})
    return main


first_uids: dict[str, str] = {}


def of_a_new_name(pod: Any) -> bool:
    metadata = pod["metadata"]
    return bool(first_uids.setdefault(metadata["name"], metadata["uid"]) == metadata["uid"])


def of_bound_pods(pod: Any, *arguments: Any) -> Any:
    return take(pod, *arguments) if pod["spec"].get("nodeName") else None


def as_unbound(pod: Any) -> bool:
    if pod["spec"]["schedulerName"] == parts["NAME"]:
        pod["spec"].pop("nodeName", None)
    return True


def as_any_pod(pod: Any) -> bool:
    if pod["metadata"].get("labels", {}).get("app") == "kai-resource-reservation":
        pod["metadata"]["labels"] = {}
    return True


def as_staying(pod: Any) -> bool:
    pod["metadata"].pop("deletionTimestamp", None)
    return True


def as_running(pod: Any) -> bool:
    pod["status"]["phase"] = "Running"
    return True


def without_gates(pod: Any) -> bool:
    pod["spec"].pop("schedulingGates", None)
    return True


# The part that is replaced, by what.
PARTS: dict[str, tuple[str, Any]] = {
    "ignores_failures": ("react", lambda *_: None),
    "leaves_failures": ("has_paused", lambda _: False),
    "returns_to_the_node": ("react", to_any_node),
    "deletes_failed_pods": ("react", deleting_the_pod),
    "deletes_failures_at_once": ("has_paused", lambda request: request.get("status", {}).get("phase") == "Failed"),
    "counts_no_shares": ("take", of_whole_devices),
    "joins_any_group": ("place", to_any_group),
    "overfills_a_group": ("place", to_a_full_group),
    "repeats_events": ("refuse", repeating_events),
    "sets_no_condition": ("refuse", without_condition),
    "bans_nodes": ("place", to_unbanned_nodes),
    "takes_mebibytes_as_gibibytes": ("share", in_gibibytes),
    "takes_one_device": ("share", of_one_device),
    "ignores_cordons": ("allows", without_cordons),
    "counts_no_pods": ("needs", lambda pod: needs(pod) - Counter(pods=1)),
    "reports_nothing": ("refuse", lambda *_: None),
    "ignores_nodes": ("allows", to_the_first_node),
    "ignores_unfinished_requests": ("take", of_bound_pods),
    "ignores_init_containers": ("needs", of_main_containers),
    "takes_sidecars_as_init": ("needs", of_the_largest_container),
}
# What is done to each pod that is listed; False leaves it out.
PODS: dict[str, Any] = {
    "counts_ended_pods": as_running,
    "forgets_terminating_pods": lambda pod: "deletionTimestamp" not in pod["metadata"],
    "ignores_gates": without_gates,
    "remembers_names": of_a_new_name,
    "takes_foreign_pods": as_own,
    "counts_reservations": as_any_pod,
    "decides_bound_pods": as_unbound,
    "decides_deleted_pods": as_staying,
    "counts_own_pods_only": lambda pod: pod["spec"]["schedulerName"] == parts["NAME"],
}

if __name__ == "__main__":
    if mistake in PARTS:
        name, replacement = PARTS[mistake]
        parts[name] = replacement
    config.load_config()
    core = Core(PODS.get(mistake, lambda _: True))
    apis = {
        "exits_at_a_denial": ExitingAtADenial,
        "repeats_at_once": RepeatingAtOnce,
        "sets_no_owner": WithoutOwner,
        "deletes_each_failure": DeletingEachFailure,
        "decides_twice": DecidingTwice,
        "deletes_successes_by_name": DeletingSuccessesByName,
        "moves_decisions": Moving,
        "binds": Binding,
        "polls": Polling,
    }
    custom = apis.get(mistake, client.CustomObjectsApi)()
    while True:
        run(core, custom)
        time.sleep(0.2)
