"""Kubeconfig files of the local cluster (pure text, and one function that writes it).

A kubeconfig here always has one cluster, one user and one context, so that `kubectl` needs no flag but the file.
ServiceAccounts use `tokenFile` rather than `token`: clients read the file again, so a token can be renewed under a
running process.
"""

import base64
from pathlib import Path
from typing import Any

import yaml

from bowline.localcluster.certs import KeyPair

CONTEXT = "bowline-local"


def certificate_user(pair: KeyPair) -> dict[str, Any]:
    """A user with a client certificate, embedded in the file."""
    return {"client-certificate-data": _b64(pair.certificate), "client-key-data": _b64(pair.key)}


def token_user(token_file: Path) -> dict[str, Any]:
    """A user with the token in a file."""
    return {"tokenFile": str(token_file.absolute())}


def kubeconfig_text(server: str, ca_pem: bytes, user: dict[str, Any], namespace: str = "default") -> str:
    """The document, as YAML."""
    context = {"cluster": CONTEXT, "user": CONTEXT, "namespace": namespace}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": CONTEXT, "cluster": {"server": server, "certificate-authority-data": _b64(ca_pem)}}],
        "users": [{"name": CONTEXT, "user": user}],
        "contexts": [{"name": CONTEXT, "context": context}],
        "current-context": CONTEXT,
    }
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
