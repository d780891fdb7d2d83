"""The unmodified chart on a real kubelet: security contexts, tokens, Services and what the image contains."""

import json

import pytest

from localcluster.node.cluster import NAMESPACE, NodeCluster
from tests.node.steps import NodeLive

COMPONENTS = ("webhook", "reconciler")
_IMAGE_BYTES = 250_000_000
_FACTS = """
import json, os, pathlib
lines = pathlib.Path("/proc/self/status").read_text().splitlines()
try:
    pathlib.Path("/written").touch()
    written = True
except OSError:
    written = False
print(json.dumps({
    "status": dict(line.split(":", 1) for line in lines),
    "written": written,
    "environment": sorted(os.environ),
}))
"""
_SIZE = """
import os
total = 0
for folder, folders, files in os.walk("/"):
    folders[:] = [name for name in folders if not os.path.ismount(os.path.join(folder, name))]
    total += sum(os.lstat(os.path.join(folder, name)).st_size for name in files)
print(total)
"""
_COMPILED = """
import asyncio, importlib.util, json, pathlib
module = pathlib.Path(asyncio.__file__)
print(json.dumps({
    "compiled": pathlib.Path(importlib.util.cache_from_source(str(module))).is_file(),
    "kubernetes": importlib.util.find_spec("kubernetes") is not None,
}))
"""


def exec_python(node: NodeCluster, component: str, program: str) -> str:
    """Run a Python program in a container of the component; returns its output."""
    target = f"deployment/bowline-{component}"
    return node.cluster.kubectl("exec", f"--namespace={NAMESPACE}", target, "--", "python", "-c", program).stdout


@pytest.mark.parametrize("component", COMPONENTS)
def test_container_is_unprivileged_with_a_read_only_root(node: NodeCluster, component: str) -> None:
    facts = json.loads(exec_python(node, component, _FACTS))
    status = {name: value.strip() for name, value in facts["status"].items()}
    assert status["Uid"].split() == ["10000"] * 4
    assert int(status["CapEff"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert not facts["written"]


@pytest.mark.parametrize("component", COMPONENTS)
def test_container_has_no_variables_of_other_services(node: NodeCluster, component: str) -> None:
    environment = json.loads(exec_python(node, component, _FACTS))["environment"]
    assert [name for name in environment if name.endswith("_SERVICE_HOST")] == ["KUBERNETES_SERVICE_HOST"]


def test_invalid_pod_is_denied_through_the_service(live: NodeLive) -> None:
    denied = live.denial("invalid", {"gpu-fraction": "abc"})
    assert "gpu-fraction" in denied
    assert "abc" in denied


def test_image_is_at_most_250_megabytes(node: NodeCluster) -> None:
    size = int(exec_python(node, "webhook", _SIZE))
    assert size <= _IMAGE_BYTES


def test_image_has_a_compiled_standard_library_and_no_kubeconfig_reader(node: NodeCluster) -> None:
    found = json.loads(exec_python(node, "reconciler", _COMPILED))
    assert found == {"compiled": True, "kubernetes": False}
