"""How much memory a share may use, as HAMi core reads it. Pure."""

import re
from decimal import Decimal

from shared.api import names
from shared.api.meta import Object

_MIB = re.compile(r"[0-9]{1,12}")


def memory_limit(node: Object, share: Decimal) -> tuple[str, str]:
    """Return the limit, such as ``4147m`` (MiB), or nothing and why there is none."""
    name = node["metadata"]["name"]
    written = (node["metadata"].get("labels") or {}).get(names.NODE_GPU_MEMORY)
    where = f"node {name}: metadata.labels[{names.NODE_GPU_MEMORY}]"
    if written is None:
        return "", f"{where} is not there, so the memory of its GPUs is unknown; have GPU feature discovery label it"
    if not _MIB.fullmatch(written) or int(written) == 0:
        return "", f'{where}: "{written}" must be a whole number of MiB; mend the label'
    limit = int(int(written) * share)
    if limit <= 0:
        return "", f"spec.receivedGPU.portion: {share} of {written} MiB is nothing; have the scheduler give more"
    return f"{limit}m", ""
