"""The supported combinations of versions (pure data and lookups, no I/O).

One row per Kubernetes minor: the patch release that is downloaded or built. etcd, kwok, Helm and KAI-Scheduler are
the same for every minor: a newer etcd serves older API servers, and one build then suffices for all rows.

kwok is 0.8 and not 0.7 because GitHub publishes checksums only for assets uploaded after June 2025, and a download
that cannot be verified is never used. The checksums are those that each project publishes beside its files. Pinned
here are the versions; the content of a Go module is pinned by Go's checksum database.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from bowline.localcluster.errors import AssetsError

DEFAULT_MINOR = "1.37"
MINOR_SETTING = "BOWLINE_KUBERNETES"

KUBERNETES = {
    "1.32": "v1.32.2",
    "1.33": "v1.33.13",
    "1.34": "v1.34.4",
    "1.35": "v1.35.4",
    "1.36": "v1.36.3",
    "1.37": "v1.37.2",
}
ETCD = "v3.6.8"
KWOK = "v0.8.0"
HELM = "v4.3.1"
KAI = "v0.12.0"
CONTAINERD = "v2.4.2"


@dataclass(frozen=True, slots=True)
class KubernetesRelease:
    """The versions of one local cluster."""

    minor: str
    kubernetes: str
    etcd: str
    kwok: str
    helm: str
    kai: str
    containerd: str


def release_for(minor: str | None, environ: Mapping[str, str]) -> KubernetesRelease:
    """Return the release of a minor; without one, of the environment's setting, else of the default.

    A full version such as `v1.35.2` is reduced to its minor: only the patch release in the table is known to build.
    Raises AssetsError for an unsupported one.
    """
    version = minor or environ.get(MINOR_SETTING) or DEFAULT_MINOR
    selected_minor = ".".join(version.removeprefix("v").split(".")[:2])
    if selected_minor not in KUBERNETES:
        known = ", ".join(KUBERNETES)
        raise AssetsError(f"Kubernetes {version!r} is not supported; set {MINOR_SETTING} to one of {known}")
    return KubernetesRelease(
        minor=selected_minor,
        kubernetes=KUBERNETES[selected_minor],
        etcd=ETCD,
        kwok=KWOK,
        helm=HELM,
        kai=KAI,
        containerd=CONTAINERD,
    )
