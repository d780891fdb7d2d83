"""What plugins may leave behind, counted through the API: nothing once pods and requests are deleted.

Volumes are excluded: a bound PVC keeps its PV for the next decision.
"""

from collections.abc import Iterator
from typing import Any

from bowline.api import names
from bowline.api.gpu_share import gpu_groups
from tests.live import Live
from tests.plugins.claims import claims, is_free
from tests.plugins.sharing import RESERVATIONS, group_of


def left(live: Live) -> list[str]:
    """All reservation pods; in the namespace: ConfigMaps and labels of shares, held claims, finalizers."""
    return [*_reservations(live), *_of_shares(live), *_of_claims(live), *_of_requests(live)]


def clean_up(live: Live) -> None:
    """Delete the test's pods and requests, as their owners do, and wait until nothing is left of them."""
    live.cluster.api.request("DELETE", _pods(live), {"gracePeriodSeconds": 0})
    live.cluster.api.delete(_requests(live))
    leftovers: list[str] = []

    def nothing_left() -> bool:
        leftovers[:] = [*left(live), *(f"pod {item['metadata']['name']}" for item in _items(live, _pods(live)))]
        leftovers.extend(f"request {item['metadata']['name']}" for item in _items(live, _requests(live)))
        return not leftovers

    try:
        live.until("nothing of the test's pods is left", nothing_left)
    except AssertionError:
        # Devices are reserved outside of the test's namespace: one failure must not fail the tests that follow.
        live.cluster.kubectl(
            "delete", "pods", "--all", f"--namespace={names.RESERVATION_APP}", "--grace-period=0", "--force"
        )
        raise AssertionError(f"left behind: {leftovers}\n{live.cluster.log_tails(15)}") from None


def _reservations(live: Live) -> Iterator[str]:
    for item in _items(live, RESERVATIONS):
        yield f"reservation pod {item['metadata']['name']} of group {group_of(item)}"


def _of_shares(live: Live) -> Iterator[str]:
    for item in _items(live, f"/api/v1/namespaces/{live.namespace}/configmaps"):
        # Those that a test has created itself have no owner.
        if item["metadata"].get("ownerReferences"):
            yield f"ConfigMap {item['metadata']['name']}"
    for item in _items(live, _pods(live)):
        labels = item["metadata"].get("labels") or {}
        if gpu_groups(labels) or names.LABEL_GPU_SHARING in labels:
            yield f"labels of a share on pod {item['metadata']['name']}"


def _of_claims(live: Live) -> Iterator[str]:
    for item in claims(live):
        if not is_free(item):
            consumers = (item.get("status") or {}).get("reservedFor")
            yield f"claim {item['metadata']['name']} with finalizers, an allocation or users: {consumers}"


def _of_requests(live: Live) -> Iterator[str]:
    for item in _items(live, _requests(live)):
        if item["metadata"].get("finalizers"):
            yield f"finalizer on request {item['metadata']['name']}"


def _pods(live: Live) -> str:
    return f"/api/v1/namespaces/{live.namespace}/pods"


def _requests(live: Live) -> str:
    return live.request_path("").rstrip("/")


def _items(live: Live, path: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = live.cluster.api.get(path)["items"]
    return items
