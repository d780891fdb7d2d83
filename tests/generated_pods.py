"""Random pods from a seed: every GPU annotation and resource, and whatever a mutation could fail on.

All of them can be decoded by the API server; whether they are valid is what the tests check. Equal seeds give equal
pods.
"""

import json
import random
from typing import Any

from bowline.api import names
from tests.chart.policy_pods import GPU, MIG, random_pod

Json = dict[str, Any]

# What the API server parses but rejects, and unusual values that it accepts.
QUANTITIES = (0, 1, 2, "0", "1", "3", "1k", "1000m", "0.5", "500m", "1.5", "-1", "1e3", "1Ki", "2e-1", "0.0")
ENVIRONMENT: tuple[Json, ...] = (
    {"name": "PLAIN", "value": "x"},
    {"name": names.VISIBLE_DEVICES, "value": "all"},
    {"name": names.VISIBLE_DEVICES, "value": ""},
    {"name": names.NUM_OF_GPUS, "value": "2"},
    {"name": names.GPU_PORTION, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
    {"name": names.GPU_PORTION, "valueFrom": {"configMapKeyRef": {"name": "mine", "key": names.GPU_PORTION}}},
    {"name": names.DEVICE_MEMORY_LIMIT, "value": "1024"},
)
SOURCES: tuple[Json, ...] = (
    {"configMapRef": {"name": "mine"}},
    {"secretRef": {"name": "mine", "optional": True}},
    {"prefix": "P_", "configMapRef": {"name": "mine"}},
)
VOLUMES: tuple[Json, ...] = (
    {"name": "cache", "emptyDir": {}},
    {"name": "settings", "configMap": {"name": "mine"}},
    {"name": "host", "hostPath": {"path": "/data"}},
)
GOOD_PREFIXES = ("x", "my.share", "team-a-shared-gpu", "p" * 30)
PREFIXES = (*GOOD_PREFIXES, "Not_A_Name", "-x", "p" * 60, "p" * 250)
NAMES = ("p", "a.b.c", "x" * 63, "y" * 253, "1-2.3", ".".join(["z" * 40] * 6))


def generated_pod(dice: random.Random, number: int = 0) -> Json:
    """Return one pod; two of three have a valid share; the number is in its name, where that is long enough."""
    raw = random_pod(dice, dice.choice((f"pod-{number}", f"pod-{number}", *NAMES)))
    raw = {"apiVersion": "v1", "kind": "Pod", **raw}
    spec = raw["spec"]
    is_good = dice.random() < 0.6
    if is_good:
        raw["metadata"]["annotations"] = _good_share(dice, spec)
    _introduce(dice, raw["metadata"], number)
    if dice.random() < 0.2:
        spec["runtimeClassName"] = "nvidia"
    if dice.random() < 0.4:
        spec["volumes"] = dice.sample(VOLUMES, dice.randint(1, len(VOLUMES)))
    spec["schedulerName"] = dice.choice(("example-scheduler",) * 5 + ("kai-scheduler", "default-scheduler"))
    for container in (*spec["containers"], *spec.get("initContainers", ())):
        _furnish(dice, container)
        # A few of the valid ones are invalidated, in one place.
        if is_good and dice.random() < 0.9:
            container.pop("resources", None)
    for container in spec.get("initContainers", ()):
        if dice.random() < 0.4:
            container["restartPolicy"] = "Always"  # a sidecar: it runs beside the others
    if number % 17 == 3:
        spec["nodeName"] = "node-a"
    copy: Json = json.loads(json.dumps(raw))  # as from the wire: no object is shared between its parts
    return copy


def _introduce(dice: random.Random, metadata: Json, number: int) -> None:
    """Give the pod the other parts of the name of its ConfigMaps: an owner, a generated name, a prefix."""
    if dice.random() < 0.15:
        metadata["generateName"] = f"{metadata.pop('name')[:50].strip('-.')}-"
    if dice.random() < 0.1:
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": dice.choice(NAMES), "uid": f"uid-{number}"}
        metadata["ownerReferences"] = [{**owner, "controller": True}]
    if dice.random() < 0.15:
        metadata["annotations"][names.SHARED_GPU_CONFIGMAP] = dice.choice(PREFIXES)
    if dice.random() < 0.1:
        metadata["labels"] = {"app": "x"}
    if dice.random() < 0.05:
        del metadata["annotations"]


def _good_share(dice: random.Random, spec: Json) -> Json:
    """Return the annotations of a share without errors in themselves."""
    size = dice.choice(({names.GPU_FRACTION: "0.5"}, {names.GPU_FRACTION: "0.001"}, {names.GPU_MEMORY: "4096"}))
    annotations = dict(size)
    containers = [*spec["containers"], *spec.get("initContainers", ())]
    if dice.random() < 0.3:
        annotations[names.GPU_FRACTION_NUM_DEVICES] = dice.choice(("1", "2", "16"))
    if dice.random() < 0.4:
        annotations[names.GPU_FRACTION_CONTAINER] = dice.choice(containers)["name"]
    if dice.random() < 0.2:
        annotations[names.MPS] = "true"
    if dice.random() < 0.3:
        annotations[names.SHARED_GPU_CONFIGMAP] = dice.choice(GOOD_PREFIXES)
    return annotations


def _furnish(dice: random.Random, container: Json) -> None:
    """Give a container what our mutation may encounter: variables of the same names, sources, unusual quantities."""
    if dice.random() < 0.4:
        container["env"] = [dice.choice(ENVIRONMENT) for _ in range(dice.randint(0, 4))]
    if dice.random() < 0.3:
        container["envFrom"] = [dice.choice(SOURCES) for _ in range(dice.randint(0, 2))]
    if dice.random() < 0.15:
        resources = container.setdefault("resources", {})
        for kind in dice.choice((("limits",), ("requests",), ("limits", "requests"))):
            resources.setdefault(kind, {})[dice.choice((GPU, GPU, MIG))] = dice.choice(QUANTITIES)
