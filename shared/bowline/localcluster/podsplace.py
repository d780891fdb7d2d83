"""A pod-like environment for a process: the ServiceAccount's files where a kubelet mounts them.

Clients search them below /var/run only. A mount namespace gives the process its own /var/run; this machine's is not
changed. Linux only, and not every container may create one: see `has_pods_place`.
"""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from bowline.localcluster.cluster import Cluster

_IN_POD = """
mount -t tmpfs tmpfs /var/run/ && mkdir -p /var/run/secrets/kubernetes.io &&
ln -s "$0" /var/run/secrets/kubernetes.io/serviceaccount && exec "$@"
"""
_UNSHARE = ("unshare", "--user", "--map-root-user", "--mount")


def has_pods_place() -> bool:
    """Whether this machine permits creating mount namespaces; many containers do not."""
    if shutil.which(_UNSHARE[0]) is None:
        return False
    command = [*_UNSHARE, "mount", "-t", "tmpfs", "tmpfs", "/var/run/"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def pods_place(
    cluster: Cluster, namespace: str, account: str, folder: Path
) -> tuple[tuple[str, ...], Mapping[str, str]]:
    """Write the ServiceAccount's files as a kubelet does; return the prefix of a command that finds them, and its
    environment. See `has_pods_place`.
    """
    files = folder / "serviceaccount"
    files.mkdir(mode=0o700)
    cluster.service_account_kubeconfig(namespace, account, files / "token-of")
    (files / "token-of.token").rename(files / "token")
    (files / "ca.crt").write_bytes(cluster.ca_pem)
    (files / "namespace").write_text(namespace)
    server = urlsplit(cluster.server)
    address = {"KUBERNETES_SERVICE_HOST": str(server.hostname), "KUBERNETES_SERVICE_PORT": str(server.port)}
    return (*_UNSHARE, "sh", "-c", _IN_POD, str(files)), address
