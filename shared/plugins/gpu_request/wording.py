"""Texts and bounds of the rules that exist twice: in the webhook, in Python, and in the policy, in CEL.

Pure data, which keeps both equal: ``share`` and ``rules`` validate with it, ``policy`` generates the chart's copy.
The grammar of a fraction is a regular expression with one meaning in Python's ``re`` and RE2: it has no class
shorthands.
"""

from typing import Final

from shared.api import names

FRACTION_GRAMMAR: Final = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
# Schedulers store numbers of devices and of MiB in int64 fields; larger values would be lost there.
MAX_INT64: Final = 2**63 - 1

# Schedulers name a GPU group for each device; the BindRequest's CRD allows as many.
MAX_DEVICES: Final = 1024

EITHER_SHARE: Final = f"{names.GPU_FRACTION} or {names.GPU_MEMORY}"
FRACTION_FORMAT: Final = 'must be a decimal number between 0 and 1 without unit or spaces; for half a GPU write "0.5"'
FRACTION_RANGE: Final = (
    f"must be greater than 0 and less than 1; for whole GPUs use limits {names.RESOURCE_GPU} in a container "
    f"instead, for parts of several GPUs add {names.GPU_FRACTION_NUM_DEVICES}"
)
MEMORY_AND_FRACTION: Final = (
    f"cannot be combined with {names.GPU_FRACTION}: both give the size of the share; remove one of them"
)
MEMORY_FORMAT: Final = 'must be a whole number of MiB from 1 to 2^63-1, digits only; for 4 GiB write "4096"'
NUM_DEVICES_ALONE: Final = (
    f"needs {EITHER_SHARE}, which give the share of each device; "
    f"add one, or for whole GPUs use limits {names.RESOURCE_GPU} instead"
)
NUM_DEVICES_FORMAT: Final = f'must be a whole number from 1 to {MAX_DEVICES}, digits only; for two devices write "2"'
SHARE_AND_NODE_NAME: Final = (
    "a share cannot be combined with spec.nodeName: the pod is not scheduled, so it gets no device and never starts; "
    "remove spec.nodeName, or use a node selector"
)
MPS_ALONE: Final = f"needs {EITHER_SHARE}: MPS serves shares only; add one or remove this"
SHARING_DISABLED: Final = (
    f"GPU sharing is switched off; ask for whole GPUs with limits {names.RESOURCE_GPU}, "
    "or have gpuSharing.enabled set to true in Bowline's configuration"
)


# The arguments below add what was found in the pod, where the caller can list it.


def container_name(known: str = "") -> str:
    """Return the text for a container name that does not exist; ``known`` are the existing names."""
    found = f" ({known})" if known else ""
    remedy = "without the annotation the first container is taken"
    return f"must name a container or init container of this pod{found}; {remedy}"


def share_and_whole(asked: str = "") -> str:
    """Return the text for a share beside whole GPUs."""
    return _beside("whole GPUs", asked)


def share_and_mig(asked: str = "") -> str:
    """Return the text for a share beside MIG devices."""
    return _beside("MIG devices", asked)


def share_and_dra(label: str = "its container", classes: str = "") -> str:
    """Return the text for a share beside a DRA device known to be a GPU."""
    found = f" ({classes})" if classes else ""
    return f"a share cannot be combined with DRA devices of {label}{found}; remove one of the two"


def _beside(what: str, asked: str) -> str:
    found = f" ({asked})" if asked else ""
    return f"a share cannot be combined with {what}{found}; remove the annotation or those resources"
