"""A kubeconfig for connections through the proxy. Pure: text in, text out."""

from pathlib import Path

import yaml


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
