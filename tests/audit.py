"""The calls of a client in the API server's audit log."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence, Sized
from http import HTTPStatus
from typing import Any, TypeVar

import pytest

from tests.live import LiveCluster

# How often each verb was used on each resource.
Calls = Counter[tuple[str, str]]
WRITES = ("create", "update", "patch", "delete")
# All writes of a bind for which no plugin writes.
PLAIN_BIND = [("create", "pods/binding"), ("patch", "bindrequests/status"), ("create", "events")]

T = TypeVar("T", bound=Sized)


def audit_events(live: LiveCluster, user: str) -> Iterator[dict[str, Any]]:
    """Completed calls of a ServiceAccount since the test's namespace exists, in order.

    Skips the test if the API server itself timed out during one: the client repeats it, and the calls show nothing.
    It happens when etcd gets no CPU for seconds. A test whose admission webhook hangs causes it for itself only.
    """
    namespace = live.cluster.api.get(f"/api/v1/namespaces/{live.namespace}")
    start = namespace["metadata"]["creationTimestamp"].removesuffix("Z")
    for line in live.cluster.audit_lines():
        event = json.loads(line)
        if event["requestReceivedTimestamp"] < start or event["stage"] != "ResponseComplete":
            continue
        if event["user"]["username"].endswith(f":{user}"):
            if event["responseStatus"]["code"] == HTTPStatus.GATEWAY_TIMEOUT:
                pytest.skip(f"the machine is overloaded: 504 for {event['verb']} {event['requestURI']}")
            yield event


def call_of(event: dict[str, Any]) -> tuple[str, str]:
    """Verb and resource of a call."""
    reference = event["objectRef"]
    return event["verb"], "/".join(filter(None, (reference["resource"], reference.get("subresource"))))


def calls_about(live: LiveCluster, user: str) -> Iterator[dict[str, Any]]:
    """Those in the test's namespace."""
    return (
        event
        for event in audit_events(live, user)
        if (event.get("objectRef") or {}).get("namespace") == live.namespace
    )


def writes_about(live: LiveCluster, user: str, expected: Sequence[tuple[str, str]] = ()) -> Sequence[tuple[str, str]]:
    """Verb and resource of the writes in the test's namespace, once there are as many as expected."""
    return once_logged(
        live, len(expected), lambda: [call_of(event) for event in calls_about(live, user) if event["verb"] in WRITES]
    )


def count_calls(live: LiveCluster, user: str, expected: Calls) -> Calls:
    """The calls in the namespace, once there are as many as expected.

    Without reads of pods: two watches have no common order, so a request may be cached before its pod, which is then
    read live. And without the Conflicts of pods' conditions: the cached pod may lag behind the previous condition.
    """

    def calls() -> list[tuple[str, str]]:
        return [
            call
            for event in calls_about(live, user)
            if (call := call_of(event)) != ("get", "pods")
            and (call, event["responseStatus"]["code"]) != (("patch", "pods/status"), HTTPStatus.CONFLICT)
        ]

    return Counter(once_logged(live, expected.total(), calls))


def once_logged(live: LiveCluster, count: int, read: Callable[[], T]) -> T:
    """Read the log until it has so many calls: it is written after the reply."""

    def complete() -> T | None:
        calls = read()
        return calls if len(calls) >= count else None

    return live.until(f"{count} calls in the audit log", complete)
