"""Taints of devices, from the ResourceSlices in which drivers publish them (KEP-5055).

A scheduler allocates no device with a taint that the claim's request does not tolerate; a device may be tainted after
the decision. Of the slices only the tainted devices are cached: usually none. DeviceTaintRules are not read.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from bowline.shared.api.meta import Object, identity_of
from bowline.shared.api.taints import describe, untolerated
from bowline.shared.framework.status import Reason, Status, Suggestion
from bowline.shared.kube.reflector import Reflector
from bowline.shared.plugins.dynamic_resources.claim import device_of, results_of

# The effects that count for a new allocation, and for one that is stored: its device may be in use, and only the
# eviction of its pods makes it unusable. A taint with another effect, such as None, is information.
NEW, STORED = ("NoSchedule", "NoExecute"), ("NoExecute",)


class DeviceTaints:
    """The taints of devices, as watched. Absence proves nothing: the scheduler has checked the device too."""

    def __init__(self) -> None:
        self._watch: Reflector | None = None

    def attach(self, reflector: Reflector) -> None:
        """Read from the cache of this watch of ResourceSlices, which must use ``transform_slice``."""
        self._watch = reflector

    def conflict(self, label: str, allocation: Mapping[str, Any], effects: tuple[str, ...]) -> Status | None:
        """Return the failure of an allocation with a device that is tainted; None if there is none."""
        if self._watch is None or not len(self._watch.store):
            return None
        for result in results_of(allocation):
            taints = [taint for taint in self._taints(result) if taint.get("effect") in effects]
            taint = untolerated(taints, result.get("tolerations") or ())
            if taint is not None:
                why = (
                    f"{label}: device {device_of(result)} has the taint {describe(taint)}, which it does not tolerate"
                )
                return Status.fatal(why, Reason.DEVICE_CONFLICT, Suggestion.RESCHEDULE_ELSEWHERE)
        return None

    def _taints(self, result: Mapping[str, Any]) -> Iterator[Object]:
        assert self._watch is not None  # noqa: S101 - conflict() has checked it
        for cached_slice in self._watch.store.values():
            if (cached_slice["driver"], cached_slice["pool"]) == (result.get("driver"), result.get("pool")):
                yield from cached_slice["taints"].get(result.get("device"), ())


def transform_slice(resource_slice: dict[str, Any]) -> Object | None:
    """Transform: keep a slice's identity and the taints of its devices; None if no device is tainted."""
    spec = resource_slice.get("spec") or {}
    taints = {device["name"]: device["taints"] for device in spec.get("devices") or () if device.get("taints")}
    if not taints:
        return None
    pool = (spec.get("pool") or {}).get("name")
    return {"metadata": identity_of(resource_slice), "driver": spec.get("driver"), "pool": pool, "taints": taints}
