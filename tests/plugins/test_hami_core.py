"""The memory limit of a share, written into a real ConfigMap by the pair."""

from bowline.api import names
from bowline.localcluster.nodes import GPU_MEMORY_MIB
from tests.live import Live
from tests.plugins.sharing import Shares

# Of each device, by default.
RESERVED_MIB = 1024


def limit_of(shares: Shares, name: str) -> str:
    """Return the limit in the pod's ConfigMap; the pod is bound already."""
    prefix = shares.live.pod(name)["metadata"]["annotations"][names.SHARED_GPU_CONFIGMAP]
    return shares.maps()[f"{prefix}-0"][names.DEVICE_MEMORY_LIMIT]


def test_a_half_is_limited_to_half_of_the_memory(strict_pair: Live) -> None:
    shares = Shares(strict_pair)
    shares.share("half", "limited")
    strict_pair.phase("half", "Succeeded")
    stored_pod = strict_pair.pod("half")
    name = f"{stored_pod['metadata']['annotations'][names.SHARED_GPU_CONFIGMAP]}-0"
    assert limit_of(shares, "half") == f"{(GPU_MEMORY_MIB - RESERVED_MIB) // 2}m"
    env = {entry["name"]: entry for entry in stored_pod["spec"]["containers"][0]["env"]}
    reference = {"name": name, "key": names.DEVICE_MEMORY_LIMIT, "optional": True}
    assert env[names.DEVICE_MEMORY_LIMIT]["valueFrom"] == {"configMapKeyRef": reference}
