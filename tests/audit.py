"""What the API server's audit log says that somebody did."""

import json
from collections.abc import Iterator
from typing import Any

from tests.live import Live

WRITES = ("create", "update", "patch", "delete")


def calls_about(live: Live, user: str) -> Iterator[dict[str, Any]]:
    """Audited, completed calls of a ServiceAccount in the test's namespace, in order."""
    for line in live.cluster.audit_log.read_text().splitlines():
        event = json.loads(line)
        reference = event.get("objectRef") or {}
        if event["stage"] != "ResponseComplete" or reference.get("namespace") != live.namespace:
            continue
        if event["user"]["username"].endswith(f":{user}"):
            yield event


def writes_about(live: Live, user: str) -> list[tuple[str, str]]:
    """Verb and resource of the writes among them."""
    return [
        (
            event["verb"],
            "/".join(filter(None, (event["objectRef"]["resource"], event["objectRef"].get("subresource")))),
        )
        for event in calls_about(live, user)
        if event["verb"] in WRITES
    ]
