"""Kubeconfig files of the local cluster: written, read for processes, and redirected to a proxy.

A kubeconfig here always has one cluster, one user and one context, so that `kubectl` needs no flag but the file.
ServiceAccounts use `tokenFile` rather than `token`: clients read the file again, so a token can be renewed under a
running process.
"""

import base64
from pathlib import Path
from typing import Any

import yaml

from bowline.kube.config import ApiServer
from bowline.localcluster.certs import KeyPair

CONTEXT = "bowline-local"


def certificate_user(pair: KeyPair) -> dict[str, Any]:
    """A user with a client certificate, embedded in the file."""
    return {"client-certificate-data": _b64(pair.certificate), "client-key-data": _b64(pair.key)}


def token_user(token_file: Path) -> dict[str, Any]:
    """A user with the token in a file."""
    return {"tokenFile": str(token_file.absolute())}


def kubeconfig_text(server: str, ca_file: Path, user: dict[str, Any], namespace: str = "default") -> str:
    """The document, as YAML."""
    context = {"cluster": CONTEXT, "user": CONTEXT, "namespace": namespace}
    cluster = {"server": server, "certificate-authority": str(ca_file.absolute())}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": cluster}],
        "users": [{"name": CONTEXT, "user": user}],
        "contexts": [{"name": CONTEXT, "context": context}],
        "current-context": CONTEXT,
    }
    return yaml.safe_dump(document, sort_keys=False)


def api_server(kubeconfig: Path) -> ApiServer:
    """Return the server, token file and CA file of a kubeconfig of this module or of a fault proxy."""
    document = yaml.safe_load(kubeconfig.read_text())
    cluster, user = document["clusters"][0]["cluster"], document["users"][0]["user"]
    return ApiServer(cluster["server"], Path(user["tokenFile"]), Path(cluster["certificate-authority"]))


def access_flags(kubeconfig: Path) -> dict[str, str]:
    """Return the flags by which a process gets the access of such a kubeconfig."""
    server = api_server(kubeconfig)
    return {"--server": server.url, "--token-file": str(server.token_file), "--ca-file": str(server.ca_file)}


def access_words(kubeconfig: Path) -> tuple[str, ...]:
    """Return the same flags as words of a command line."""
    return tuple(f"{flag}={value}" for flag, value in access_flags(kubeconfig).items())


def redirect(text: str, where: Path, url: str, ca_file: Path) -> str:
    """Return the document with ``url`` as the server of every cluster, users unchanged; ``where`` is its file."""
    document = yaml.safe_load(text)
    for entry in document["clusters"]:
        entry["cluster"] = {"server": url, "certificate-authority": str(ca_file.absolute())}
    for entry in document["users"]:
        user = entry["user"]
        if any(key.startswith("client-certificate") for key in user):
            raise ValueError(
                f"{where}: user {entry['name']} has a client certificate, which cannot pass a proxy; "
                "give it a ServiceAccount's token"
            )
        if "tokenFile" in user:
            user["tokenFile"] = str((where.parent / user["tokenFile"]).absolute())
    return yaml.safe_dump(document, sort_keys=False)


def write_private(path: Path, text: str) -> Path:
    """Write a file that holds a secret, readable by its owner only; replaced atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.unlink(missing_ok=True)
    fresh.touch(mode=0o600)
    fresh.write_text(text)
    return fresh.replace(path)


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()
