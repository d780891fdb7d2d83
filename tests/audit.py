"""The calls of a client in the API server's audit log."""

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from tests.live import Live

# How often each verb was used on each resource.
Calls = Counter[tuple[str, str]]
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
    return [_what(event) for event in calls_about(live, user) if event["verb"] in WRITES]


def counted(live: Live, user: str, expected: Calls) -> Calls:
    """The calls in the namespace, once there are as many as expected: the log is written after the reply.

    Without reads of pods: two watches have no common order, so a request may be cached before its pod, which is then
    read live.
    """

    def calls() -> Calls | None:
        calls: Calls = Counter(map(_what, calls_about(live, user)))
        del calls["get", "pods"]
        return calls if calls.total() >= expected.total() else None

    return live.until(f"{expected.total()} calls in the audit log", calls)


def _what(event: dict[str, Any]) -> tuple[str, str]:
    reference = event["objectRef"]
    return event["verb"], "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
