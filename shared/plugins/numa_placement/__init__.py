"""Tells the pod which NUMA zones the scheduler expects it to be given.

Binding only, and no call of its own: the prediction of the request becomes an annotation that the Binding carries, so
that it is there when the kubelet sees the pod. What the kubelet then does is its own decision.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from shared.api.names import NUMA_PLACEMENT_PREDICTED
from shared.framework.plugin import Plugin
from shared.plugins.numa_placement.rules import zones_annotation

if TYPE_CHECKING:
    from shared.framework.binding.context import BindContext


class NumaPlacement(Plugin):
    """Copies ``spec.predictedNUMAZones`` to the pod."""

    name = "numa_placement"

    def before_bind(self, c: "BindContext") -> Mapping[str, str]:
        """Return the annotation; nothing for a request without zones."""
        # As written: the model has judged the zones, but knows no field that a newer scheduler adds.
        zones = c.request.raw["spec"].get("predictedNUMAZones")
        return {NUMA_PLACEMENT_PREDICTED: zones_annotation(zones)} if zones else {}
