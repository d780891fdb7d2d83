"""Random pods with every kind of GPU annotation, from a seed, all of them valid to the API server itself.

Only then a denial is the policy's: validation precedes it.
"""

import random
from typing import Any

from bowline.api import names

GPU, MIG = names.RESOURCE_GPU, names.RESOURCE_MIG_PREFIX + "1g.10gb"
CLASS = names.RESOURCE_DEVICE_CLASS_PREFIX + "gpu.example.com"
OTHER_CLASS = names.RESOURCE_DEVICE_CLASS_PREFIX + "nic.example.com"
CONTAINERS, INIT_CONTAINERS = ("main", "helper", "third"), ("prepare", "sidecar")
ALPHABET = "0123456789" * 3 + '..eE+-_ \n"\\%xnf\u0663'

FRACTIONS = [
    *("0.5", ".5", "5.", "5e-1", "+0.5", "-0.5", "0", "0.0", "-0", "1", "1.0", "0.999", "0.001", "2", "50%", ""),
    *(" 0.5", "0.5\n", "nan", "inf", "0x1p-1", "1_0", "0,5", "\u0660.\u0665", "1e", "e1", ".", "+"),
    *("1e400", "1e-400", "0e999"),
    *("0.99999999999999999", "1e-323", "1e-324", "0.1e1", "0.01e1", "1E-2", "-1e999", "0.5m", "x" * 64, "x" * 65),
    # At and beyond the length up to which the policy checks the size.
    *("0." + "0" * 94 + "1e99", "0." + "0" * 93 + "1e100", "0.5" + "0" * 97, "9" * 100, "0.5" + "0" * 98, "9" * 101),
    *("0." + "0" * 400 + "1", "1e" + "9" * 50, "1e-" + "9" * 50),
]
NUMBERS = [
    *("1", "2", "4096", "01", "0", "00", "", "-1", "+1", "1.0", "1e3", "4Gi", " 1", "1\n", "1_0", "\u0663", "0x1"),
    *("9223372036854775807", "9223372036854775808", "0009223372036854775807", "0009223372036854775808"),
    *("999999999999999999", "1000000000000000000", "10000000000000000000", "9" * 5000, "0" * 5000 + "1"),
]
CHOICES = {
    names.GPU_FRACTION: FRACTIONS,
    names.GPU_MEMORY: NUMBERS,
    names.GPU_FRACTION_NUM_DEVICES: NUMBERS,
    names.GPU_FRACTION_CONTAINER: [
        *(*CONTAINERS, *INIT_CONTAINERS, "none", "", "a\\b", 'a"b', "\r\n", "\U0001f40c" * 70)
    ],
    names.DEFAULT_CONTAINER: [*CONTAINERS, *INIT_CONTAINERS, "none", ""],
    names.MPS: ["true", "True", "false", "", " true", "true\n"],
    names.SHARED_GPU_CONFIGMAP: ["x"],
}


def random_pods(seed: int, count: int) -> list[dict[str, Any]]:
    """Return that many pods, equal for equal seeds."""
    dice = random.Random(seed)  # noqa: S311 - no secret
    pods = [random_pod(dice, f"pod-{number}") for number in range(count)]
    for pod in pods[3::17]:
        pod["spec"]["nodeName"] = "node-a"
    return pods


def random_pod(dice: random.Random, name: str) -> dict[str, Any]:
    """Return one pod."""
    # Few annotations mostly, so that each rule is also violated alone.
    annotation_names = [key for key in CHOICES if dice.random() < dice.choice((0.25, 0.6))]
    spec: dict[str, Any] = {
        "schedulerName": "example-scheduler",
        "containers": [_container(dice, known) for known in CONTAINERS[: dice.randint(1, 3)]],
    }
    init = [_container(dice, known) for known in INIT_CONTAINERS[: dice.choice((0, 0, 1, 2))]]
    if init:
        spec["initContainers"] = init
    return {
        "metadata": {"name": name, "annotations": {key: _value(dice, key) for key in annotation_names}},
        "spec": spec,
    }


def _value(dice: random.Random, key: str) -> str:
    if key in (names.GPU_FRACTION, names.GPU_MEMORY, names.GPU_FRACTION_NUM_DEVICES) and dice.random() < 0.25:
        return "".join(dice.choices(ALPHABET, k=dice.randint(1, 6)))
    return dice.choice(CHOICES[key])


def _container(dice: random.Random, name: str) -> dict[str, Any]:
    container: dict[str, Any] = {"name": name, "image": "example.com/x"}
    limits: dict[str, Any] = {}
    requests: dict[str, Any] = {}
    if dice.random() < 0.15:
        limits[GPU] = dice.choice((0, "0", "0m", "0e5", 1, "2", "1k", "1000m"))
        if dice.random() < 0.5:
            requests[GPU] = limits[GPU]
    if dice.random() < 0.1:
        limits[MIG] = dice.choice((0, "0Ki", 1, "3"))
    if dice.random() < 0.15:
        dice.choice((limits, requests))[dice.choice((CLASS, OTHER_CLASS))] = dice.choice((0, 1, "2"))
    if dice.random() < 0.3:
        limits["cpu"] = "100m"
    resources = {key: value for key, value in (("limits", limits), ("requests", requests)) if value}
    if resources:
        container["resources"] = resources
    return container
