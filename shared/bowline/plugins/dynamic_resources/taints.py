"""Taints of devices (KEP-5055): which devices are tainted, and whether a claim tolerates that. Pure.

Drivers taint devices in ResourceSlices, administrators by DeviceTaintRules. The effects NoSchedule and NoExecute
forbid a new allocation unless the request tolerates the taint; other effects are ignored, as Kubernetes requires.
Only objects with such a taint are cached: most slices have none.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bowline.api.meta import Object, ObjectKey, identity_of, key_of
from bowline.api.taints import tolerates
from bowline.plugins.dynamic_resources.claim import device_of, results_of

_EFFECTS = ("NoSchedule", "NoExecute")
_FIELDS = ("key", "value", "effect")


@dataclass(frozen=True, slots=True)
class TaintedDevice:
    """A device with a taint that its request does not tolerate, and the object that has the taint."""

    device: str
    taint: str
    kind: str
    source: ObjectKey

    @property
    def driver(self) -> str:
        """The driver of the device."""
        return self.device.partition("/")[0]


def reduce_slice(resource_slice: dict[str, Any]) -> Object | None:
    """Return the tainted devices of a ResourceSlice; None if it has none."""
    spec = resource_slice.get("spec") or {}
    devices = [
        {"name": device["name"], "taints": taints}
        for device in spec.get("devices") or ()
        if (taints := [*_effective(device.get("taints") or ())])
    ]
    if not devices:
        return None
    pool = (spec.get("pool") or {}).get("name")
    reduced = {"driver": spec.get("driver"), "pool": {"name": pool}, "devices": devices}
    return {"metadata": identity_of(resource_slice), "spec": reduced}


@dataclass(frozen=True, slots=True)
class PoolPart:
    """A ResourceSlice of a pool: its generation, and its tainted devices as ``reduce_slice`` returns them."""

    pool: str
    generation: int
    tainted: Object | None


def pool_part(resource_slice: dict[str, Any]) -> PoolPart:
    """Return what decides whether the taints of a ResourceSlice count."""
    pool = (resource_slice.get("spec") or {}).get("pool") or {}
    return PoolPart(str(pool.get("name")), int(pool.get("generation") or 0), reduce_slice(resource_slice))


def newest_slices(parts: Iterable[PoolPart]) -> list[Object]:
    """Return the tainted slices of one driver without those that a newer generation of their pool has replaced."""
    parts = list(parts)
    newest: dict[str, int] = {}
    for part in parts:
        newest[part.pool] = max(newest.get(part.pool, 0), part.generation)
    return [part.tainted for part in parts if part.tainted is not None and part.generation == newest[part.pool]]


def reduce_rule(rule: dict[str, Any]) -> Object | None:
    """Return selector and taint of a DeviceTaintRule; None if it taints no device."""
    spec = rule.get("spec") or {}
    taints = [*_effective([spec.get("taint") or {}])]
    selector = spec.get("deviceSelector")
    if not taints or selector is None:
        return None
    return {"metadata": identity_of(rule), "spec": {"deviceSelector": selector, "taint": taints[0]}}


def untolerated_taints(
    allocation: Mapping[str, Any] | None,
    requests: Sequence[Mapping[str, Any]],
    slices: Iterable[Object],
    rules: Iterable[Object],
) -> list[TaintedDevice]:
    """Return the allocated devices with a taint that their request does not tolerate.

    ``requests``: of the claim's spec. ``slices`` and ``rules``: as ``reduce_slice`` and ``reduce_rule`` return them.
    """
    slices, rules = [*slices], [*rules]
    tainted_devices = []
    for result in results_of(allocation) if slices or rules else ():
        tolerations = [*(result.get("tolerations") or ()), *_tolerations(requests, str(result.get("request")))]
        for kind, source, taint in _taints_of(result, slices, rules):
            if not any(tolerates(toleration, taint) for toleration in tolerations):
                tainted_devices.append(TaintedDevice(device_of(result), _shown(taint), kind, key_of(source)))
    return tainted_devices


def _taints_of(
    result: Mapping[str, Any], slices: Iterable[Object], rules: Iterable[Object]
) -> Iterator[tuple[str, Object, Mapping[str, Any]]]:
    driver, pool, name = result.get("driver"), result.get("pool"), result.get("device")
    for resource_slice in slices:
        spec = resource_slice["spec"]
        if spec["driver"] == driver and spec["pool"]["name"] == pool:
            for device in spec["devices"]:
                if device["name"] == name:
                    yield from (("ResourceSlice", resource_slice, taint) for taint in device["taints"])
    for rule in rules:
        selector = rule["spec"]["deviceSelector"]
        criteria = (("driver", driver), ("pool", pool), ("device", name))
        if all(selector.get(field) in (None, value) for field, value in criteria):
            yield "DeviceTaintRule", rule, rule["spec"]["taint"]


def _effective(taints: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    for taint in taints:
        if taint.get("effect") in _EFFECTS:
            yield {field: taint[field] for field in _FIELDS if taint.get(field)}


def _tolerations(requests: Iterable[Mapping[str, Any]], name: str) -> Sequence[Mapping[str, Any]]:
    """Return the tolerations of a request, or of one of its alternatives (``request/alternative``)."""
    request_name, _, alternative_name = name.partition("/")
    for request in requests:
        if request.get("name") != request_name:
            continue
        parts = request.get("firstAvailable") or () if alternative_name else [request.get("exactly") or {}]
        for part in parts:
            if part.get("name", "") == alternative_name:
                return part.get("tolerations") or ()
    return ()


def _shown(taint: Mapping[str, Any]) -> str:
    value = f"={taint['value']}" if taint.get("value") else ""
    return f"{taint.get('key')}{value}:{taint.get('effect')}"
