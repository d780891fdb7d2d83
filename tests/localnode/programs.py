"""Programs of the node that are built from `src/`: fake GPUs (Go), a fake NVML library and the pause program (C).

Each is built once per source and Kubernetes version and cached.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bowline.localcluster.assets.progress import Progress
from bowline.localcluster.errors import AssetsError

SOURCES = Path(__file__).with_name("src")
# The versions that kubelet plugins of the newest supported Kubernetes use; they register with older kubelets too.
_KUBERNETES_MODULES = "v0.36.3"
_MODULES = (
    "k8s.io/api",
    "k8s.io/apimachinery",
    "k8s.io/client-go",
    "k8s.io/dynamic-resource-allocation",
    "k8s.io/kubelet",
)


@dataclass(frozen=True, slots=True)
class Programs:
    """The paths of the built files."""

    fake_gpu: Path
    nvml: Path
    pause: Path


def build_programs(cache: Path, progress: Progress) -> Programs:
    """Return the programs, built if not cached. Raises AssetsError with the compiler's output."""
    texts = b"".join(path.read_bytes() for path in sorted(SOURCES.iterdir()))
    digest = hashlib.sha256(texts + _KUBERNETES_MODULES.encode()).hexdigest()[:16]
    folder = cache / f"node-programs-{digest}"
    if not folder.is_dir():
        work = Path(tempfile.mkdtemp(prefix=".work-programs-", dir=cache))
        try:
            _build(work, progress)
            work.rename(folder)
        except BaseException:
            shutil.rmtree(work, ignore_errors=True)
            raise
    return Programs(folder / "fakegpu", folder / "libnvidia-ml.so.1", folder / "pause")


def _build(work: Path, progress: Progress) -> None:
    progress.report("fake GPUs: go build")
    _run(["gcc", "-static", "-Os", "-o", str(work / "pause"), str(SOURCES / "pause.c")], work)
    library = ["gcc", "-shared", "-fPIC", "-Os", "-o", str(work / "libnvidia-ml.so.1"), str(SOURCES / "nvml.c")]
    _run(library, work)
    module = work / "module"
    module.mkdir()
    shutil.copy(SOURCES / "fakegpu.go", module / "main.go")
    requires = "\n".join(f"require {name} {_KUBERNETES_MODULES}" for name in _MODULES)
    (module / "go.mod").write_text(f"module bowline.local/fakegpu\n\ngo 1.24\n\n{requires}\n")
    _run(["go", "mod", "tidy"], module)
    _run(["go", "build", "-ldflags", "-s -w", "-o", str(work / "fakegpu"), "."], module)
    shutil.rmtree(module)


def _run(command: list[str], folder: Path) -> None:
    environ = {**os.environ, "GOWORK": "off", "CGO_ENABLED": "0"}
    result = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise AssetsError(f"`{' '.join(command)}` ended with {result.returncode}:\n{result.stderr[-3000:]}")
