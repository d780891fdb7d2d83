"""The pod's annotation for predicted NUMA zones. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def zones_annotation(zones: Sequence[Mapping[str, Any]]) -> str:
    """Return the zones as compact JSON, with quantities as the scheduler wrote them.

    ``zone`` precedes ``amount``, as in the scheduler's own annotation; the API server returns fields sorted by name.
    """
    ordered = [{"zone": zone["zone"], "amount": zone["amount"], **zone} for zone in zones]
    return json.dumps(ordered, separators=(",", ":"), ensure_ascii=False)
