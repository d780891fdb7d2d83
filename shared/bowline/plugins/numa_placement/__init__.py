"""Publishes on the pod the NUMA zones and memory groups that the scheduler predicted for it.

Binding only, without an API call of its own: the request's prediction becomes an annotation of the Binding, so that
it is present when the kubelet first sees the pod. The kubelet's own decision may differ.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bowline.api.names import NUMA_MEMORY_GROUPS_PREDICTED, NUMA_PLACEMENT_PREDICTED
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.plugin import Access, BindContext


class NumaPlacement(BuiltinBindingPlugin):
    """Copies ``spec.predictedNUMAZones`` and ``spec.predictedNUMAMemoryGroups`` to the pod."""

    name = "numa_placement"
    access = Access(binding_annotations=(NUMA_PLACEMENT_PREDICTED, NUMA_MEMORY_GROUPS_PREDICTED))

    def binding_annotations(self, ctx: BindContext) -> Mapping[str, str]:
        """Return the annotations; empty for a request without predictions."""
        # The raw values: the model has validated them, but drops fields that a newer scheduler adds.
        spec = ctx.request.raw["spec"]
        zones, groups = spec.get("predictedNUMAZones"), spec.get("predictedNUMAMemoryGroups")
        return {
            **({NUMA_PLACEMENT_PREDICTED: as_annotation(zones, "zone")} if zones else {}),
            **({NUMA_MEMORY_GROUPS_PREDICTED: as_annotation(groups, "memoryNodes")} if groups else {}),
        }


def as_annotation(entries: Sequence[Mapping[str, Any]], first: str) -> str:
    """Return the entries as compact JSON, with quantities as the scheduler wrote them.

    ``first`` precedes ``amount``, as in the scheduler's own annotation; the API server returns fields sorted by name.
    """
    fields = (first, "amount")
    ordered = [{**{field: entry[field] for field in fields if field in entry}, **entry} for entry in entries]
    return json.dumps(ordered, separators=(",", ":"), ensure_ascii=False)
