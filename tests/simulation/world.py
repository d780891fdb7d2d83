"""The rest of the cluster: users, schedulers, kubelets with device plugins, agents, volume and claim controllers,
garbage collector. They act on the model directly, each action atomically and with a right to be late or unwise.

What they do is drawn from the seed; ``Profile`` is what may occur in a run at all (swarm testing: most runs have few
kinds of pods and few kinds of trouble, so that each is also met without the others).
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from bowline.api import names
from bowline.api.gpu_share import gpu_groups
from bowline.framework.interface.mutable import MutablePod
from bowline.plugins.gpu_sharing.admission import prepare
from tests.simulation.dice import Dice
from tests.simulation.ends import has_ended, uid_of_pod
from tests.simulation.loop import VirtualLoop
from tests.simulation.objects import Object
from tests.simulation.server import KINDS, Change, Server

NAMESPACE = "work"
DRIVER, CLASS = "dra.example.com", "gpu.example.com"
PROVISIONER = "csi.example.com"
EXTENDED = "gpu.example.com/gpu"
RESERVATIONS = "kai-resource-reservation"
REQUESTS = "/apis/scheduling.run.ai/v1alpha2"
CLAIMS = "/apis/resource.k8s.io/v1"

_NOT_READY = "node.kubernetes.io/not-ready"
_NAMESPACED = ("pods", "bindrequests", "configmaps", "resourceclaims", "persistentvolumeclaims", "podgroups")

KINDS_OF_PODS = (
    "plain", "gated", "share", "shares", "claim", "shared claim", "extended", "volume", "provision", "gang", "whole",
    "mixed",
)  # fmt: skip
DEEDS = (
    "delete pod", "remake pod", "force delete", "delete request", "remake request", "node goes",
    "taint", "end pod", "open gate", "touch", "claim touched", "revise request", "ill node",
    "reservation ends", "reservation goes", "namespace goes", "redecide",
)  # fmt: skip


@dataclass(slots=True)
class Profile:
    """What a run contains."""

    kinds: tuple[str, ...] = KINDS_OF_PODS
    deeds: tuple[str, ...] = DEEDS
    pods: int = 5
    nodes: int = 2
    devices: int = 2
    cpus: int = 6
    deed_every_s: float = 6.0
    chaos_s: float = 120.0
    owner_share: float = 0.5  # of requests owned by their pods; the others name its UID only
    unwise: float = 0.1  # of decisions for a node or a device that is not free
    silent: float = 0.1  # of agents that never report
    reject: float = 0.2  # of provisioners' answers
    stale: float = 0.3  # of decisions that are sent only after up to 5 s


class World:
    """Everything but the reconcilers."""

    def __init__(self, loop: VirtualLoop, server: Server, dice: Dice, profile: Profile) -> None:
        self.loop = loop
        self.server = server
        self.dice = dice
        self.profile = profile
        self.is_calm = False  # no user acts any more; controllers and schedulers go on
        self.is_slow = False  # controllers act less often, for the run's speed: no request depends on them
        self.schedules = True
        self.notes: Callable[[str], None] = lambda _: None
        self._made = 0
        self._kind_of: dict[str, str] = {}  # by pod UID
        self._devices: dict[str, dict[str, str]] = {}  # by node: device to pod UID, as the kubelet counts
        server.observers.append(self._on_change)

    # --- set-up ---

    def pause(self, shortest: float, longest: float, chance: Any) -> Any:
        """Sleep between two rounds of an actor."""
        return asyncio.sleep(chance.uniform(shortest, longest) * (4 if self.is_slow else 1))

    def furnish(self) -> None:
        """Create nodes, devices, classes and volumes."""
        for number in range(self.profile.nodes):
            self._make_node(f"n{number}")
        self._post("/apis/storage.k8s.io/v1/storageclasses", _class("late", names.NO_PROVISIONER))
        self._post("/apis/storage.k8s.io/v1/storageclasses", _class("made", PROVISIONER))
        for number in range(self.profile.nodes * 2):
            self._make_volume(f"pv{number}", f"n{number % self.profile.nodes}", "late", None)

    def start(self) -> None:
        """Start all actors."""
        for actor in (self._users, self._creators, self._scheduler):
            self.loop.create_task(actor(), name=actor.__name__)
        self.start_controllers()

    def start_controllers(self) -> None:
        """Start the cluster's own actors, without users and schedulers."""
        for actor in (self._kubelets, self._agents, self._volumes, self._claims, self._collector, self._quota):
            self.loop.create_task(actor(), name=actor.__name__)

    def _make_node(self, name: str) -> None:
        devices = [f"{name}-d{number}" for number in range(self.profile.devices)]
        # Beside the pods of users, reservation pods need little.
        cpus, count = f"{1000 * self.profile.cpus + 500}m", str(self.profile.devices)
        capacity = {"cpu": cpus, "memory": "64Gi", "pods": "50", "nvidia.com/gpu": count}
        labels = {"kubernetes.io/hostname": name, "nvidia.com/gpu.memory": "40960"}
        body = {"metadata": {"name": name, "labels": labels}, "spec": {}, "status": {"allocatable": capacity}}
        if self._post("/api/v1/nodes", body) is None:
            return
        self._devices[name] = {}
        spec = {"driver": DRIVER, "nodeName": name, "pool": {"name": name, "generation": 1}}
        slices = {"metadata": {"name": f"{name}-slice"}, "spec": {**spec, "devices": [{"name": d} for d in devices]}}
        self._post(f"{CLAIMS}/resourceslices", slices)

    def _make_volume(self, name: str, node: str, class_name: str, claim: Object | None) -> None:
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
        spec: dict[str, Any] = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class_name,
            "persistentVolumeReclaimPolicy": "Retain",
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        }
        if claim is not None:
            key = claim["metadata"]
            spec["claimRef"] = {"namespace": key["namespace"], "name": key["name"], "uid": key["uid"]}
        self._post(
            "/api/v1/persistentvolumes",
            {
                "metadata": {"name": name},
                "spec": spec,
                "status": {"phase": "Available" if claim is None else "Pending"},
            },
        )

    # --- users ---

    async def _creators(self) -> None:
        chance = self.dice.stream("creators")
        for number in range(self.profile.pods):
            await asyncio.sleep(chance.expovariate(1 / 4.0))
            self.make_pod(f"p{number}", self.profile.kinds[number % len(self.profile.kinds)])

    def make_pod(self, name: str, kind: str) -> None:
        """Create a pod with what it needs, as admitted by the webhook."""
        self._made += 1
        container: dict[str, Any] = {"name": "main", "image": "app", "resources": {"requests": {"cpu": "1"}}}
        metadata: dict[str, Any] = {"name": name, "namespace": NAMESPACE, "annotations": {}, "labels": {}}
        spec: dict[str, Any] = {"schedulerName": "example-scheduler", "containers": [container]}
        status: dict[str, Any] = {"phase": "Pending"}
        if kind == "gated":
            spec["schedulingGates"] = [{"name": "gate"}]
        elif kind in ("share", "shares", "mixed"):
            metadata["annotations"] = {names.GPU_FRACTION: "0.5"}
        elif kind == "whole":
            container["resources"] = {
                "requests": {"cpu": "1", "nvidia.com/gpu": "1"},
                "limits": {"nvidia.com/gpu": "1"},
            }
        if kind in ("claim", "mixed"):
            spec["resourceClaims"] = [{"name": "dev", "resourceClaimTemplateName": "tpl"}]
        elif kind == "shared claim":
            spec["resourceClaims"] = [{"name": "dev", "resourceClaimName": "common"}]
            self._post(
                f"{CLAIMS}/namespaces/{NAMESPACE}/resourceclaims",
                {"metadata": {"name": "common"}, "spec": _CLAIM_SPEC},
            )
        elif kind == "extended":
            container["resources"]["limits"] = {EXTENDED: "1"}
        if kind in ("volume", "provision", "mixed"):
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": f"{name}-data"}}]
            class_name = "made" if kind == "provision" else "late"
            claim = {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": class_name,
                "resources": {"requests": {"storage": "1Gi"}},
            }
            self._post(
                f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims",
                {"metadata": {"name": f"{name}-data"}, "spec": claim, "status": {"phase": "Pending"}},
            )
        if kind == "gang":
            metadata["annotations"] = {names.POD_GROUP_NAME: "team"}
            members = sum(
                kind == "gang"
                for kind in (self.profile.kinds[i % len(self.profile.kinds)] for i in range(self.profile.pods))
            )
            group = {"metadata": {"name": "team"}, "spec": {"minMember": max(1, min(2, members))}}
            self._post(f"/apis/scheduling.run.ai/v2alpha2/namespaces/{NAMESPACE}/podgroups", group)
        body = {"metadata": metadata, "spec": spec, "status": status}
        if kind in ("share", "shares", "mixed"):
            # The same seed again for a pod that is made again: its user has chosen the ConfigMaps' name.
            prepare(MutablePod(body), name if self._made % 2 else f"{name}{self._made}")
        made = self._post(f"/api/v1/namespaces/{NAMESPACE}/pods", body)
        if made is not None:
            self._kind_of[made["metadata"]["uid"]] = kind
            if kind in ("claim", "mixed"):
                self.loop.later(0.3, self._call_when_up, self._make_claim, made)

    def _make_claim(self, pod: Object) -> None:
        """The claim controller creates a claim from the pod's template."""
        key, uid = pod["metadata"], pod["metadata"]["uid"]
        name = f"{key['name']}-dev-{uid[:8]}"
        owner = {"apiVersion": "v1", "kind": "Pod", "name": key["name"], "uid": uid, "controller": True}
        annotations = {"resource.kubernetes.io/pod-claim-name": "dev"}
        body = {
            "metadata": {"name": name, "ownerReferences": [owner], "annotations": annotations},
            "spec": _CLAIM_SPEC,
        }
        self._post(f"{CLAIMS}/namespaces/{NAMESPACE}/resourceclaims", body)
        entry = {"resourceClaimStatuses": [{"name": "dev", "resourceClaimName": name}]}
        self._patch_status("pods", key, {"metadata": {"uid": uid}, "status": entry})

    async def _users(self) -> None:
        chance = self.dice.stream("users")
        while not self.is_calm:
            await asyncio.sleep(chance.expovariate(1 / self.profile.deed_every_s))
            if self.is_calm or not self.profile.deeds:
                return
            deed, draw = chance.choice(self.profile.deeds), chance.random()
            self._do(deed, draw)

    def _do(self, deed: str, draw: float) -> None:
        """Do one deed to an object that the draw picks, if there is one for it."""
        pods = [pod for pod in self.server.objects("pods") if pod["metadata"]["namespace"] == NAMESPACE]
        unbound = [pod for pod in pods if not pod["spec"].get("nodeName")]
        requests = self.server.objects("bindrequests")
        pending = [r for r in requests if (r.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
        running = [pod for pod in pods if pod["spec"].get("nodeName") and pod["status"].get("phase") == "Running"]
        reservations = [pod for pod in self.server.objects("pods") if pod["metadata"]["namespace"] == RESERVATIONS]
        claims = [*self.server.objects("resourceclaims"), *self.server.objects("persistentvolumeclaims")]
        # Mostly pods that are not bound, and requests that are not finished: there is more to go wrong.
        deeds: Mapping[str, tuple[list[Object], Callable[[Object, float], None]]] = {
            "delete pod": (unbound or pods, self._delete),
            "force delete": (unbound or pods, self._delete_at_once),
            "remake pod": (unbound or pods, self._remake_pod),
            "delete request": (pending or requests, self._delete),
            "remake request": (pending or requests, self._remake_request),
            "revise request": (pending, self._revise),
            "redecide": (pending, self._redecide),
            "node goes": (self.server.objects("nodes"), self._lose_node),
            "taint": (self.server.objects("nodes"), partial(self._taint, key="x", seconds=30)),
            "ill node": (self.server.objects("nodes"), partial(self._taint, key=_NOT_READY, seconds=80)),
            "reservation ends": (reservations, self._evict),
            "reservation goes": (reservations, self._delete_at_once),
            "namespace goes": (pods, self._lose_namespace),
            "end pod": (running, self._end_pod),
            "open gate": ([pod for pod in unbound if pod["spec"].get("schedulingGates")], self._open_gate),
            "touch": ([*pods, *requests], self._touch),
            "claim touched": (claims, self._touch),
        }
        objects, act = deeds[deed]
        if objects:
            target = objects[int(draw * len(objects))]
            self.notes(f"{deed} {target['metadata']['name']}")
            act(target, draw)

    def _delete(self, target: Object, _: float) -> None:
        self.server.call("user", "DELETE", path_of(target))

    def _delete_at_once(self, pod: Object, _: float) -> None:
        self.server.call("user", "DELETE", path_of(pod), {"gracePeriodSeconds": 0})

    def _remake_pod(self, pod: Object, _: float) -> None:
        self._delete_at_once(pod, 0)
        self.make_pod(pod["metadata"]["name"], self._kind_of[pod["metadata"]["uid"]])

    def _remake_request(self, request: Object, draw: float) -> None:
        self._delete(request, draw)
        self.request_bind(request["metadata"]["name"], draw)

    def _revise(self, request: Object, draw: float) -> None:
        self.server.call("user", "PATCH", path_of(request), {"spec": {"backoffLimit": int(draw * 4)}})

    def _redecide(self, request: Object, draw: float) -> None:
        """Choose another node in place, as another project's CRD permits."""
        nodes = [node["metadata"]["name"] for node in self.server.objects("nodes")]
        if nodes:
            node = nodes[int(draw * len(nodes))]
            self.server.call("scheduler", "PATCH", path_of(request), {"spec": {"selectedNode": node}})

    def _lose_node(self, node: Object, draw: float) -> None:
        self.server.call("user", "DELETE", path_of(node))
        self.loop.later(15 + 30 * draw, self._call_when_up, self._make_node, node["metadata"]["name"])

    def _taint(self, node: Object, draw: float, *, key: str, seconds: float) -> None:
        taint = {"key": key, "effect": "NoSchedule"}
        self.server.call("user", "PATCH", path_of(node), {"spec": {"taints": [taint]}})
        arguments = ("user", "PATCH", path_of(node), {"spec": {"taints": None}})
        self.loop.later(10 + seconds * draw, self._call_when_up, self.server.call, *arguments)

    def _evict(self, pod: Object, _: float) -> None:
        self._patch_status("pods", pod["metadata"], {"status": {"phase": "Failed", "reason": "Evicted"}})

    def _lose_namespace(self, _: Object, draw: float) -> None:
        """Delete everything in the namespace; it is made again once that is gone."""
        self.server.terminating.add(NAMESPACE)
        for plural in _NAMESPACED:
            for target in self.server.objects(plural):
                if target["metadata"]["namespace"] == NAMESPACE:
                    self._delete(target, draw)
        self.loop.later(20 + 40 * draw, self.server.terminating.discard, NAMESPACE)

    def _end_pod(self, pod: Object, _: float) -> None:
        self._patch_status("pods", pod["metadata"], {"status": {"phase": "Succeeded"}})

    def _open_gate(self, pod: Object, _: float) -> None:
        self.server.call("user", "PATCH", path_of(pod), {"spec": {"schedulingGates": None}})

    def _touch(self, target: Object, draw: float) -> None:
        self.server.call("user", "PATCH", path_of(target), {"metadata": {"annotations": {"touched": str(draw)}}})

    # --- scheduler ---

    async def _scheduler(self) -> None:
        """Decide for unbound pods without a request; replace failed requests; forget the finished ones."""
        chance = self.dice.stream("scheduler")
        while True:
            await self.pause(0.2, 3.0, chance)
            if not self.schedules:
                continue
            requests = {request["metadata"]["name"]: request for request in self.server.objects("bindrequests")}
            for pod in self.server.objects("pods"):
                key = pod["metadata"]
                if key["namespace"] != NAMESPACE or pod["spec"].get("nodeName") or key.get("deletionTimestamp"):
                    continue
                request = requests.get(key["name"])
                if request is None:
                    if chance.random() < self.profile.stale:
                        self.loop.later(
                            chance.uniform(0, 5), self._request_late, key["name"], key["uid"], chance.random()
                        )
                        await asyncio.sleep(0)
                    else:
                        self.request_bind(key["name"], chance.random())
                elif (request.get("status") or {}).get("phase") == "Failed" or (
                    request["spec"].get("podUID") not in ("", None, key["uid"])
                ):
                    self.server.call("scheduler", "DELETE", path_of(request))

    def _request_late(self, name: str, uid: str, draw: float) -> None:
        """A decision about a pod that may have been replaced since."""
        self.request_bind(name, draw, uid)

    def request_bind(self, pod_name: str, draw: float, uid: str = "", groups: Collection[str] = ()) -> None:
        """Create the pod's BindRequest, for these GPU groups if any, unless there is nothing to decide."""
        pod = self.server.find("pods", pod_name, NAMESPACE)
        if pod is None:
            return
        key, kind = pod["metadata"], self._kind_of.get(pod["metadata"]["uid"], "plain")
        uid = uid or key["uid"]
        chance = self.dice.stream("decision", pod_name, key["uid"], draw)
        unwise = chance.random() < self.profile.unwise and not self.is_calm
        candidates = self._candidates(pod_name, kind, unwise=unwise)
        if not candidates:
            return
        node = chance.choice(sorted(candidates))
        spec: dict[str, Any] = {
            "podName": pod_name,
            "podUID": uid,
            "selectedNode": node,
            "receivedResourceType": "Regular",
            "receivedGPU": {"portion": "0.00", "count": 0},
        }
        if chance.random() < 0.5:
            spec["backoffLimit"] = chance.randint(0, 3)
        devices = self._decided_devices(kind, node, chance, unwise=unwise)
        if devices is None:
            return
        if groups:
            devices = {**devices, "selectedGPUGroups": sorted(groups)}
        metadata: dict[str, Any] = {"name": pod_name, "namespace": NAMESPACE}
        if chance.random() < self.profile.owner_share:
            metadata["ownerReferences"] = [{"apiVersion": "v1", "kind": "Pod", "name": pod_name, "uid": uid}]
        body = {"metadata": metadata, "spec": {**spec, **devices}}
        self._post(f"{REQUESTS}/namespaces/{NAMESPACE}/bindrequests", body)

    def _candidates(self, pod_name: str, kind: str, *, unwise: bool) -> list[str]:
        """Return the nodes that may be decided; an unwise decision looks at nothing."""
        if unwise:
            return [f"n{number}" for number in range(self.profile.nodes)]
        if kind in ("volume", "provision", "mixed"):
            claim = self.server.find("persistentvolumeclaims", f"{pod_name}-data", NAMESPACE)
            volume_name = claim["spec"].get("volumeName") if claim is not None else None
            volume = self.server.find("persistentvolumes", volume_name) if volume_name else None
            annotations = (claim["metadata"].get("annotations") or {}) if claim is not None else {}
            if names.SELECTED_NODE in annotations:
                return [annotations[names.SELECTED_NODE]]
            if volume is not None:
                return [node_of_volume(volume)]
        nodes = [
            node["metadata"]["name"]
            for node in self.server.objects("nodes")
            if not node["spec"].get("taints") and self._asked_of(node["metadata"]["name"]) < self.profile.cpus
        ]
        if kind in ("volume", "mixed"):
            free = [
                node_of_volume(volume)
                for volume in self.server.objects("persistentvolumes")
                if not volume["spec"].get("claimRef") and volume["spec"]["storageClassName"] == "late"
            ]
            return [node for node in nodes if node in free]
        return nodes

    def _asked_of(self, node: str) -> int:
        """How many pods a node has, or will have: each requests one CPU."""
        pods = [
            p for p in self.server.objects("pods") if p["metadata"]["namespace"] == NAMESPACE and not has_ended(p)
        ]
        bound = {pod["metadata"]["uid"] for pod in pods if pod["spec"].get("nodeName") == node}
        asked = {
            uid_of_pod(request)
            for request in self.server.objects("bindrequests")
            if request["spec"]["selectedNode"] == node and not has_ended(request)
        }
        return len(bound | asked)

    def _decided_devices(self, kind: str, node: str, chance: Random, *, unwise: bool) -> dict[str, Any] | None:
        """Return the part of a spec that decides devices; None if there are none."""
        if kind in ("share", "shares"):
            groups = self._groups(node, 2 if kind == "shares" else 1, chance, unwise=unwise)
            portion = {"portion": "0.50", "count": len(groups)}
            share = {"receivedResourceType": "Fraction", "selectedGPUGroups": groups, "receivedGPU": portion}
            return share if groups else None
        if kind == "whole":
            is_full = len(self._devices.get(node, {})) >= self.profile.devices
            return {"receivedGPU": {"portion": "1", "count": 1}} if unwise or not is_full else None
        if kind == "mixed":
            return self._of_both(node, chance, unwise=unwise)
        is_claim = kind in ("claim", "shared claim", "extended")
        return self._decided_claim(kind, node, chance, unwise=unwise) if is_claim else {}

    def _decided_claim(self, kind: str, node: str, chance: Random, *, unwise: bool) -> dict[str, Any] | None:
        allocation = self._allocation(kind, node, chance, unwise=unwise)
        if allocation is None:
            return None
        if kind != "extended":
            return {"resourceClaimAllocations": [{"name": "dev", "allocation": allocation}]}
        decision = {
            "allocation": allocation,
            "deviceRequests": [{"name": "r", "exactly": {"deviceClassName": CLASS, "count": 1}}],
            "containerMappings": [{"containerName": "main", "resourceName": EXTENDED, "requestName": "r"}],
        }
        return {"extendedResourceClaimAllocation": decision}

    def _of_both(self, node: str, chance: Random, *, unwise: bool) -> dict[str, Any] | None:
        parts = [self._decided_devices(kind, node, chance, unwise=unwise) for kind in ("share", "claim")]
        return None if None in parts else {key: value for part in parts for key, value in (part or {}).items()}

    def _groups(self, node: str, count: int, chance: Random, *, unwise: bool) -> list[str]:
        """GPU groups: one that exists on the node, or a new one while the node has a free device; in calm one with
        room. A pod that another node was chosen for has taken its groups with it.
        """
        nodes_by_group = {
            str(pod["metadata"]["labels"][names.LABEL_GPU_GROUP]): pod["spec"].get("nodeName")
            for pod in self.server.objects("pods")
            if pod["metadata"]["namespace"] == RESERVATIONS
        }
        existing = sorted(group for group, its_node in nodes_by_group.items() if its_node == node)
        free = max(0, self.profile.devices - len(self._devices.get(node, {})))
        possible = [f"{node}-g{number}" for number in range(self.profile.devices + 1)]
        unused = [name for name in possible if name not in (existing if unwise else nodes_by_group)]
        fresh = unused[: free if not unwise else None]
        pool = [group for group in existing if not self.is_calm or self._has_room(group)] + fresh
        return sorted(chance.sample(pool, count)) if len(pool) >= count else []

    def _has_room(self, group: str) -> bool:
        """Return whether one pod at most uses the group's device: each takes a half."""
        pods = [pod for pod in self.server.objects("pods") if pod["metadata"]["namespace"] == NAMESPACE]
        users = [p for p in pods if not has_ended(p) and group in gpu_groups(p["metadata"].get("labels") or {})]
        return len(users) < 2

    def _allocation(self, kind: str, node: str, chance: Random, *, unwise: bool) -> Object | None:
        """An AllocationResult for one device that no claim and no other decision has."""
        taken = set()
        for claim in self.server.objects("resourceclaims"):
            for result in _results((claim.get("status") or {}).get("allocation")):
                taken.add(result["device"])
                if kind == "shared claim" and claim["metadata"]["name"] == "common":
                    shared: Object = claim["status"]["allocation"]
                    return shared
        for request in self.server.objects("bindrequests"):
            if (request.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                continue
            for entry in request["spec"].get("resourceClaimAllocations") or ():
                taken |= {result["device"] for result in _results(entry.get("allocation"))}
            claim_allocation = request["spec"].get("extendedResourceClaimAllocation") or {}
            taken |= {result["device"] for result in _results(claim_allocation.get("allocation"))}
        devices = [f"{node}-d{number}" for number in range(self.profile.devices)]
        free = devices if unwise else [device for device in devices if device not in taken]
        if not free:
            return None
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        result = {
            "request": "r" if kind == "extended" else "dev",
            "driver": DRIVER,
            "pool": node,
            "device": chance.choice(free),
        }
        return {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [term]}}

    # --- kubelets, with a device plugin ---

    async def _kubelets(self) -> None:
        """Run bound pods; end deleted ones; count devices."""
        chance = self.dice.stream("kubelets")
        while True:
            await self.pause(0.2, 1.0, chance)
            for pod in self.server.objects("pods"):
                key, node = pod["metadata"], pod["spec"].get("nodeName")
                if not node or self.server.find("nodes", node) is None:
                    if node:  # pod garbage collection: its node is gone
                        self.server.call("podgc", "DELETE", path_of(pod), {"gracePeriodSeconds": 0})
                    continue
                if key.get("deletionTimestamp"):
                    if chance.random() < 0.5:
                        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": key["uid"]}}
                        self.server.call("kubelet", "DELETE", path_of(pod), body)
                elif pod["status"].get("phase") == "Pending" and chance.random() < 0.6:
                    self._admit(pod, node)

    def _admit(self, pod: Object, node: str) -> None:
        uid = pod["metadata"]["uid"]
        if _takes_device(pod):
            taken = self._devices.setdefault(node, {})
            free = [d for d in (f"{node}-d{n}" for n in range(self.profile.devices)) if d not in taken]
            if not free:
                status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no device"}
                self._patch_status("pods", pod["metadata"], {"status": status})
                return
            taken[free[0]] = uid
        self._patch_status("pods", pod["metadata"], {"status": {"phase": "Running"}})

    def device_of(self, uid: str) -> str | None:
        """The device that the kubelet has assigned to a pod."""
        return next((d for taken in self._devices.values() for d, holder in taken.items() if holder == uid), None)

    def _on_change(self, change: Change) -> None:
        """A pod that has ended or is gone leaves its device."""
        if change.kind.plural != "pods" or change.old is None:
            return
        new = change.new
        if new is None or (new.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            uid = change.old["metadata"]["uid"]
            for taken in self._devices.values():
                for device in [device for device, holder in taken.items() if holder == uid]:
                    del taken[device]

    async def _agents(self) -> None:
        """Report the device of a running reservation pod."""
        chance = self.dice.stream("agents")
        silent: set[str] = set()
        judged: set[str] = set()
        while True:
            await self.pause(0.2, 1.5, chance)
            for pod in self.server.objects("pods"):
                key = pod["metadata"]
                if key["namespace"] != RESERVATIONS or pod["status"].get("phase") != "Running":
                    continue
                if key["uid"] not in judged:
                    judged.add(key["uid"])
                    if chance.random() < self.profile.silent and not self.is_calm:
                        silent.add(key["uid"])
                device = self.device_of(key["uid"])
                reserved_device = (key.get("annotations") or {}).get(names.RESERVED_DEVICE)
                if key["uid"] in silent or device is None or reserved_device or key.get("deletionTimestamp"):
                    continue
                body = {"metadata": {"annotations": {names.RESERVED_DEVICE: device}}}
                self.server.call("agent", "PATCH", path_of(pod), body)

    # --- volumes ---

    async def _volumes(self) -> None:
        """The PV controller and the provisioner, one step of one object at a time."""
        chance = self.dice.stream("volumes")
        while True:
            await self.pause(0.2, 1.0, chance)
            for claim in self.server.objects("persistentvolumeclaims"):
                if chance.random() < 0.6:
                    self._advance_claim(claim, chance)
            for volume in self.server.objects("persistentvolumes"):
                self._advance_volume(volume)

    def _advance_claim(self, claim: Object, chance: Any) -> None:
        key, path = claim["metadata"], path_of(claim)
        annotations = key.get("annotations") or {}
        if names.BIND_COMPLETED in annotations:
            if claim["status"].get("phase") != "Bound":
                self._patch_status("persistentvolumeclaims", key, {"status": {"phase": "Bound"}})
            return
        for volume in self.server.objects("persistentvolumes"):
            reference = volume["spec"].get("claimRef") or {}
            if reference.get("uid") == key["uid"]:
                if volume["status"].get("phase") != "Bound":
                    self._patch_status("persistentvolumes", volume["metadata"], {"status": {"phase": "Bound"}})
                    return
                bound = {
                    "metadata": {"annotations": {names.BIND_COMPLETED: "yes"}},
                    "spec": {"volumeName": volume["metadata"]["name"]},
                }
                self.server.call("pv-controller", "PATCH", path, bound)
                return
        selected_node = annotations.get(names.SELECTED_NODE)
        if selected_node and claim["spec"].get("storageClassName") == "made":
            if chance.random() < self.profile.reject and not self.is_calm:
                self.server.call(
                    "provisioner", "PATCH", path, {"metadata": {"annotations": {names.SELECTED_NODE: None}}}
                )
            elif chance.random() < 0.5:
                self._make_volume(f"made-{key['uid'][:8]}", selected_node, "made", claim)

    def _advance_volume(self, volume: Object) -> None:
        reference = volume["spec"].get("claimRef") or {}
        if not reference:
            return
        claim = self.server.find("persistentvolumeclaims", reference["name"], reference["namespace"])
        if (claim is None or claim["metadata"]["uid"] != reference.get("uid", claim["metadata"]["uid"])) and volume[
            "status"
        ].get("phase") == "Bound":
            self._patch_status("persistentvolumes", volume["metadata"], {"status": {"phase": "Released"}})

    # --- claims ---

    async def _claims(self) -> None:
        """kube-controller-manager: consumers that have ended leave a claim; an unused one is deallocated."""
        chance = self.dice.stream("claims")
        while True:
            await self.pause(0.5, 3.0, chance)
            pods = {pod["metadata"]["uid"]: pod for pod in self.server.objects("pods")}
            for claim in self.server.objects("resourceclaims"):
                status, key = claim.get("status") or {}, claim["metadata"]
                before = status.get("reservedFor") or []
                left = [
                    entry
                    for entry in before
                    if entry["uid"] in pods
                    and pods[entry["uid"]]["status"].get("phase") not in ("Succeeded", "Failed")
                ]
                path, finalizers = path_of(claim), key.get("finalizers") or []
                if len(left) < len(before):
                    new = (
                        {**status, "reservedFor": left}
                        if left
                        else {k: v for k, v in status.items() if k not in ("reservedFor", "allocation", "devices")}
                    )
                    self.server.call("claim-controller", "PUT", f"{path}/status", {**claim, "status": new})
                elif (
                    not before
                    and names.RESOURCE_CLAIM_PROTECTION in finalizers
                    and not status.get("allocation")
                    and key.get("deletionTimestamp")
                ):
                    rest = [f for f in finalizers if f != names.RESOURCE_CLAIM_PROTECTION]
                    self.server.call(
                        "claim-controller",
                        "PATCH",
                        path,
                        {"metadata": {"finalizers": rest, "resourceVersion": key["resourceVersion"]}},
                    )
                elif not before and status.get("allocation") and key.get("deletionTimestamp"):
                    self.server.call("claim-controller", "PUT", f"{path}/status", {**claim, "status": {}})

    # --- a controller that consents to binds ---

    async def _quota(self) -> None:
        chance = self.dice.stream("quota")
        while True:
            await self.pause(0.5, 4.0, chance)
            for check in self.server.objects("bindchecks"):
                if "status" in check or (chance.random() < 0.4 and not self.is_calm):
                    continue
                is_denied = chance.random() < self.profile.reject and not self.is_calm
                answer = {"type": "Ready", "status": str(not is_denied), "reason": "Quota", "message": "the quota"}
                self._patch_status("bindchecks", check["metadata"], {"status": {"conditions": [answer]}})

    # --- garbage collector ---

    async def _collector(self) -> None:
        chance = self.dice.stream("collector")
        while True:
            await self.pause(0.5, 4.0, chance)
            uids = {pod["metadata"]["uid"] for pod in self.server.objects("pods")}
            for plural in ("bindrequests", "configmaps", "resourceclaims", "bindchecks"):
                for thing in self.server.objects(plural):
                    owners = thing["metadata"].get("ownerReferences") or ()
                    is_orphan = owners and all(o["kind"] == "Pod" and o["uid"] not in uids for o in owners)
                    if is_orphan and not thing["metadata"].get("deletionTimestamp"):
                        body = {"preconditions": {"uid": thing["metadata"]["uid"]}}
                        self.server.call("collector", "DELETE", path_of(thing), body)

    # --- helpers ---

    def _call_when_up(self, call: Callable[..., object], *arguments: object) -> None:
        """Make a call that must not get lost: once the API server is there."""
        if self.server.is_down:
            self.loop.later(5, self._call_when_up, call, *arguments)
        else:
            call(*arguments)

    def backup(self) -> dict[str, dict[str, str]]:
        """Copy what kubelets have assigned."""
        return deepcopy(self._devices)

    def restore(self, devices: dict[str, dict[str, str]]) -> None:
        """Etcd was restored: kubelets run what it contains, and nothing else."""
        self._devices = devices

    def _post(self, path: str, body: Object) -> Object | None:
        return self.server.call("world", "POST", path, body)

    def _patch_status(self, plural: str, key: Object, body: Object) -> None:
        thing = self.server.find(plural, key["name"], key.get("namespace", ""))
        if thing is not None:
            self.server.call("world", "PATCH", f"{path_of(thing)}/status", body)


_CLAIM_SPEC = {"devices": {"requests": [{"name": "dev", "exactly": {"deviceClassName": CLASS, "count": 1}}]}}


def _class(name: str, provisioner: str) -> Object:
    return {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": "WaitForFirstConsumer"}


def _results(allocation: Object | None) -> Iterable[Object]:
    return ((allocation or {}).get("devices") or {}).get("results") or ()


def node_of_volume(volume: Object) -> str:
    """Return the node from which a volume can be reached."""
    term = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]
    return str(term["matchExpressions"][0]["values"][0])


def _takes_device(pod: Object) -> bool:
    return any(
        "nvidia.com/gpu" in ((c.get("resources") or {}).get("limits") or {}) for c in pod["spec"]["containers"]
    )


def path_of(stored: Object) -> str:
    """Return the path of a stored object."""
    key, api_version = stored["metadata"], stored["apiVersion"]
    prefix = "/api/v1" if "/" not in api_version else f"/apis/{api_version}"
    namespace = f"/namespaces/{key['namespace']}" if key.get("namespace") else ""
    plural = next(kind.plural for kind in KINDS if (kind.api_version, kind.kind) == (api_version, stored["kind"]))
    return f"{prefix}{namespace}/{plural}/{key['name']}"
