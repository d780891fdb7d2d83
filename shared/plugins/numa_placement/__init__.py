"""Publishes on the pod the NUMA zones that the scheduler predicted for it.

Binding only, without an API call of its own: the request's prediction becomes an annotation of the Binding, so that
it is present when the kubelet first sees the pod. The kubelet's own decision may differ.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shared.api.names import NUMA_PLACEMENT_PREDICTED
from shared.plugin import BindContext, BindingPlugin


class NumaPlacement(BindingPlugin):
    """Copies ``spec.predictedNUMAZones`` to the pod."""

    name = "numa_placement"

    def binding_annotations(self, ctx: BindContext) -> Mapping[str, str]:
        """Return the annotation; empty for a request without zones."""
        # The raw value: the model has validated the zones, but drops fields that a newer scheduler adds.
        zones = ctx.request.raw["spec"].get("predictedNUMAZones")
        return {NUMA_PLACEMENT_PREDICTED: zones_annotation(zones)} if zones else {}


def zones_annotation(zones: Sequence[Mapping[str, Any]]) -> str:
    """Return the zones as compact JSON, with quantities as the scheduler wrote them.

    ``zone`` precedes ``amount``, as in the scheduler's own annotation; the API server returns fields sorted by name.
    """
    entries = [{"zone": zone["zone"], "amount": zone["amount"], **zone} for zone in zones]
    return json.dumps(entries, separators=(",", ":"), ensure_ascii=False)
