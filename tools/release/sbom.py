"""The software bill of materials: SPDX 2.3 in JSON, from the lock file that the image is installed from. Pure.

The packages of the base image's distribution are not listed: the base image, by its digest, stands for them.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from bowline.runtime.version import DISTRIBUTION

_PIN = re.compile(r"^([A-Za-z0-9._-]+)==([^ \\;]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def as_spdx(version: str, epoch: int, requirements: str, *, base: str, image: str) -> dict[str, Any]:
    """Return the document. ``base``: NAME@DIGEST of the base image; ``image``: the digest of the image."""
    root = _package(DISTRIBUTION, version, f"pkg:pypi/{DISTRIBUTION}", license_text="Apache-2.0")
    root["packageFileName"] = f"bowline@{image}"
    name, _, digest = base.partition("@")
    parts = [_package(name, digest, f"pkg:oci/{name.rpartition('/')[2].partition(':')[0]}")]
    parts += [_package(name, version, f"pkg:pypi/{name}") for name, version, _ in pins(requirements)]
    related = [("DESCRIBES", "SPDXRef-DOCUMENT", root), *(("CONTAINS", root["SPDXID"], part) for part in parts)]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"bowline-{version}",
        "documentNamespace": f"https://bowline.dev/spdx/bowline-{version}-{image.removeprefix('sha256:')[:16]}",
        "creationInfo": {
            "created": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: bowline-tools.release"],
        },
        "packages": [root, *parts],
        "relationships": [
            {"spdxElementId": owner, "relationshipType": kind, "relatedSpdxElement": part["SPDXID"]}
            for kind, owner, part in related
        ],
    }


def pins(requirements: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield name, version and the permitted SHA-256 hashes of each package in a lock file."""
    for block in re.split(r"\n(?=[A-Za-z0-9])", requirements):
        if pin := _PIN.match(block):
            yield pin[1], pin[2], _HASH.findall(block)


def _package(name: str, version: str, purl: str, *, license_text: str = "NOASSERTION") -> dict[str, Any]:
    return {
        "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name),
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": license_text,
        "copyrightText": "NOASSERTION",
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": f"{purl}@{version}",
            }
        ],
    }
