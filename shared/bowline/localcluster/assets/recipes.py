"""Name, download and build of each binary (pure: release and platform in, recipe out).

A recipe does not describe availability; that is the providers' task. Downloads use the official hosts only and always
have a published checksum.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from bowline.localcluster.assets.versions import KubernetesRelease


class Tool(StrEnum):
    """The binaries a local cluster may need; the value is the file name."""

    ETCD = "etcd"
    APISERVER = "kube-apiserver"
    CONTROLLER_MANAGER = "kube-controller-manager"
    SCHEDULER = "kube-scheduler"
    KUBECTL = "kubectl"
    KWOK = "kwok"
    HELM = "helm"
    KUBELET = "kubelet"
    KUBE_PROXY = "kube-proxy"
    CONTAINERD = "containerd"
    CONTAINERD_SHIM = "containerd-shim-runc-v2"
    CTR = "ctr"
    KAI_SCHEDULER = "scheduler"
    KAI_PODGROUPER = "podgrouper"
    KAI_ADMISSION = "admission"
    KAI_BINDER = "binder"


CLUSTER_TOOLS = (Tool.ETCD, Tool.APISERVER, Tool.CONTROLLER_MANAGER, Tool.KUBECTL, Tool.KWOK)
KAI_TOOLS = (Tool.KAI_SCHEDULER, Tool.KAI_PODGROUPER)
# What the pair replaces, for benchmarks.
KAI_PEERS = (Tool.KAI_ADMISSION, Tool.KAI_BINDER)
# containerd is built from its module, not taken from the system: Debian's 1.6 has no CDI, which DRA needs, and
# kubelet 1.37 requires a runtime that reports its cgroup driver.
CONTAINERD_TOOLS = (Tool.CONTAINERD, Tool.CONTAINERD_SHIM, Tool.CTR)
NODE_TOOLS = (Tool.KUBELET, Tool.KUBE_PROXY, *CONTAINERD_TOOLS)

ChecksumKind = Literal["sha256-file", "github-digest"]


@dataclass(frozen=True, slots=True)
class Download:
    """One published file: its URL, its checksum's URL, and the member to extract from an archive.

    `sha256-file` is a bare digest or lines of `digest  name`; `github-digest` is the JSON of a GitHub release, whose
    assets have a digest. `member` None means that the file itself is the binary.
    """

    url: str
    checksum_url: str
    checksum_kind: ChecksumKind
    member: str | None = None


@dataclass(frozen=True, slots=True)
class GoBuild:
    """One main package of a module of the Go module proxy.

    Tools with the same module and version are built by one `go build`, which shares their packages. `staged` is true
    for Kubernetes, whose go.mod refers to folders that its published module lacks.
    """

    module: str
    version: str
    package: str
    staged: bool = False

    @property
    def program(self) -> str:
        """The file name that `go build` gives the program: the last element of its path that is not a version."""
        *_, parent, last = self.package.split("/")
        return parent if re.fullmatch(r"v\d+", last) else last


@dataclass(frozen=True, slots=True)
class Recipe:
    """The providers' input for one binary."""

    tool: Tool
    version: str
    folder: str
    download: Download | None
    build: GoBuild


# The processors for which each project publishes binaries, of Linux. All others must be built.
_MACHINES = ("amd64", "arm64")
KAI_MODULE = "github.com/NVIDIA/KAI-scheduler"


def recipe_for(tool: Tool, release: KubernetesRelease, machine: str) -> Recipe:
    """The recipe of one binary of a release, on a processor by Go's name (`amd64`)."""
    match tool:
        case Tool.ETCD:
            return _etcd(release.etcd, machine)
        case Tool.KWOK:
            return _kwok(release.kwok, machine)
        case Tool.HELM:
            return _helm(release.helm, machine)
        case Tool.KAI_SCHEDULER | Tool.KAI_PODGROUPER | Tool.KAI_ADMISSION | Tool.KAI_BINDER:
            return _kai(tool, release.kai)
        case Tool.CONTAINERD | Tool.CONTAINERD_SHIM | Tool.CTR:
            return _containerd(tool, release.containerd, machine)
        case _:
            return _kubernetes(tool, release.kubernetes, machine)


def _kubernetes(tool: Tool, version: str, machine: str) -> Recipe:
    download = None
    if machine in _MACHINES:
        url = f"https://dl.k8s.io/release/{version}/bin/linux/{machine}/{tool}"
        download = Download(url=url, checksum_url=f"{url}.sha256", checksum_kind="sha256-file")
    build = GoBuild("k8s.io/kubernetes", version, f"k8s.io/kubernetes/cmd/{tool}", staged=True)
    return Recipe(tool, version, version, download, build)


def _etcd(version: str, machine: str) -> Recipe:
    download = None
    if machine in _MACHINES:
        stem = f"etcd-{version}-linux-{machine}"
        base = f"https://github.com/etcd-io/etcd/releases/download/{version}"
        download = Download(f"{base}/{stem}.tar.gz", f"{base}/SHA256SUMS", "sha256-file", f"{stem}/etcd")
    module = "go.etcd.io/etcd/server/v3"
    return Recipe(Tool.ETCD, version, f"etcd-{version}", download, GoBuild(module, version, module))


def _kwok(version: str, machine: str) -> Recipe:
    download = None
    if machine in _MACHINES:
        repository = "kubernetes-sigs/kwok"
        name = f"kwok-linux-{machine}"
        download = Download(
            f"https://github.com/{repository}/releases/download/{version}/{name}",
            f"https://api.github.com/repos/{repository}/releases/tags/{version}",
            "github-digest",
        )
    module = "sigs.k8s.io/kwok"
    return Recipe(Tool.KWOK, version, f"kwok-{version}", download, GoBuild(module, version, f"{module}/cmd/kwok"))


def _helm(version: str, machine: str) -> Recipe:
    download = None
    if machine in _MACHINES:
        name = f"linux-{machine}"
        url = f"https://get.helm.sh/helm-{version}-{name}.tar.gz"
        download = Download(url, f"{url}.sha256sum", "sha256-file", f"{name}/helm")
    module = "helm.sh/helm/v4"
    return Recipe(Tool.HELM, version, f"helm-{version}", download, GoBuild(module, version, f"{module}/cmd/helm"))


def _containerd(tool: Tool, version: str, machine: str) -> Recipe:
    download = None
    if machine in _MACHINES:
        stem = f"containerd-{version.removeprefix('v')}-linux-{machine}.tar.gz"
        url = f"https://github.com/containerd/containerd/releases/download/{version}/{stem}"
        download = Download(url, f"{url}.sha256sum", "sha256-file", f"bin/{tool}")
    module = "github.com/containerd/containerd/v2"
    build = GoBuild(module, version, f"{module}/cmd/{tool}")
    return Recipe(tool, version, f"containerd-{version}", download, build)


def _kai(tool: Tool, version: str) -> Recipe:
    # Published as container images only.
    return Recipe(tool, version, f"kai-{version}", None, GoBuild(KAI_MODULE, version, f"{KAI_MODULE}/cmd/{tool}"))
