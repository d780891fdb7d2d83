"""The zones as the pod's annotation holds them. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def zones_annotation(zones: Sequence[Mapping[str, Any]]) -> str:
    """Return the zones as compact JSON, quantities as the scheduler wrote them.

    ``zone`` comes before ``amount``, as the scheduler has it: the API server stores the fields of an object by name.
    """
    ordered = [{"zone": zone["zone"], "amount": zone["amount"], **zone} for zone in zones]
    return json.dumps(ordered, separators=(",", ":"), ensure_ascii=False)
