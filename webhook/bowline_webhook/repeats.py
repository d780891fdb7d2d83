"""Denies a BindRequest that repeats a decision which has just ended Failed, while what it depends on is unchanged.

A scheduler without a memory of failures would decide the same in every cycle and keep other pods from the node; a
denied creation makes it decide again in the same cycle. The memory is a condition of the pod
(``bowline.api.failed_decision``), so that every replica has it and none must store it.

The pod is read only if it may have such a condition: a watch of Failed requests reports the pods of recent failures.
While that watch has not covered the longest backoff, as after a start, the pod of every request is read. What cannot
be read within ``TIMEOUT_S`` is allowed: the reconciler decides, as it would without this check. A first decision is
never denied. Decision 200.

A caller of the webhook need not be an API server. The denial repeats the failure of a pod, which may name other
objects of its namespace, so only a caller that knows the pod's UID gets it; no object is read for any other.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from bowline.api import names
from bowline.api.bindrequest import Phase, owner_pod_uid
from bowline.api.failed_decision import (
    ABSENT,
    CLAIM,
    NODE,
    POD,
    VOLUME_CLAIM,
    FailedDecision,
    condition_of,
    decision_of,
    failed_decision_of,
    node_print,
    pod_print,
)
from bowline.api.field_error import FieldError
from bowline.api.meta import Object, ObjectKey, identity_of, status_of, uid_of, version_of
from bowline.api.rule import Rule
from bowline.framework import structure
from bowline.kube.client import ClientOptions, KubeClient
from bowline.kube.config import ApiServer, wait_for_access
from bowline.kube.errors import KubeError, NotFound
from bowline.kube.metrics import KubeMetrics
from bowline.kube.reflector import EventType, Listener, Reflector
from bowline.kube.resources import (
    BINDREQUESTS,
    NODES,
    PERSISTENTVOLUMECLAIMS,
    PODS,
    RESOURCECLAIMS,
    Resource,
    Selection,
)
from bowline.runtime.tasks import ShutdownSignal
from bowline_webhook.hooks import Hook, Review

REPEATED: Final = Rule(
    "bindrequest/repeated",
    "a BindRequest repeats a decision that has just failed, and nothing that it depends on has changed: "
    "`admission.repeatBackoff`, [decision 200](decisions/0200-a-repeated-failure-is-denied-at-creation.md)",
)

RULES: Final = (REPEATED,)


log = logging.getLogger(__name__)

# Of all reads for one request; the API server waits much longer for a webhook.
TIMEOUT_S: Final = 1.0
# Requests that are checked at the same time; more are allowed.
MAX_CHECKS: Final = 64
# Pods of recent failures that are remembered; more are forgotten, oldest first, and then decided again.
MAX_PODS: Final = 10_000
_RESOURCES: Final[Mapping[str, Resource]] = {
    NODE: NODES,
    CLAIM: RESOURCECLAIMS.as_metadata(),
    VOLUME_CLAIM: PERSISTENTVOLUMECLAIMS.as_metadata(),
}


class RepeatGuard:
    """Checks BindRequests that are being created. ``longest``: the longest backoff; zero checks nothing."""

    def __init__(self, api_server: ApiServer | None, metrics: KubeMetrics, longest: timedelta) -> None:
        self._api_server = api_server
        self._metrics = metrics
        self._longest = longest
        self._checker: RepeatChecker | None = None

    async def errors(self, hook: Hook, review: Review) -> tuple[FieldError, ...]:
        """Return the error of a repeated decision; none for any other review. Raises nothing but CancelledError."""
        is_creation = hook.object_kind == (names.GROUP, names.KIND) and review.operation == "CREATE"
        if self._checker is None or not is_creation:
            return ()
        return () if review.errors else await self._checker.errors(review)

    async def run(self, stop: ShutdownSignal) -> None:
        """Watch until cancelled, or until ``stop`` while there is no access to an API server."""
        if not self._longest:
            return
        access = await wait_for_access(self._api_server, stop, lambda _: None)
        if access is None:
            return
        options = ClientOptions(name=names.FIELD_MANAGER_WEBHOOK, metrics=self._metrics)
        async with KubeClient(access, options) as client:
            self._checker = RepeatChecker(client, self._longest)
            await self._checker.reflector.run()


class RepeatChecker:
    """The check, with a client. ``reflector``: watches the Failed requests; run by the owner."""

    def __init__(self, client: KubeClient, longest: timedelta) -> None:
        self._client = client
        self._longest = longest
        self._checks = 0
        # UIDs of pods of Failed requests, and when their failure was reported, monotonic.
        self._failures: OrderedDict[str, float] = OrderedDict()
        self.reflector = Reflector(
            client,
            Selection(BINDREQUESTS, field_selector=f"status.phase={Phase.FAILED.value}"),
            listener=Listener(self._on_event),
            transform=transform_request,
            fallback=True,
        )

    async def errors(self, review: Review) -> tuple[FieldError, ...]:
        """Return the error of a repeated decision. See ``RepeatGuard.errors``."""
        spec = review.object.get("spec")
        if not isinstance(spec, dict) or structure.bind_request_errors(review.object):
            return ()
        if self._checks >= MAX_CHECKS or not self._may_be_repeated(review.object):
            return ()
        self._checks += 1
        try:
            async with asyncio.timeout(TIMEOUT_S):
                failure = await self._unchanged_failure(review, spec)
        except (KubeError, TimeoutError) as error:
            log.debug("a decision is not checked for repetition", extra={"error": str(error) or "timed out"})
            return ()
        finally:
            self._checks -= 1
        return () if failure is None else (self._error(*failure),)

    def _may_be_repeated(self, request: Object) -> bool:
        """Return whether the pod may have a recent failure: one is reported, or not all may have been."""
        uid = _pod_uid(request)
        return bool(uid) and (uid in self._failures or self.reflector.in_contact() < self._longest)

    async def _unchanged_failure(self, review: Review, spec: Object) -> tuple[FailedDecision, str] | None:
        """Return the failed decision that the request repeats, and its sentence.

        None if it is another, or something has changed.
        """
        name, uid = spec.get("podName"), _pod_uid(review.object)
        if not isinstance(name, str) or not name:
            return None
        try:
            pod = await self._client.get(PODS, review.namespace, name)
        except NotFound:
            return None
        failure = failed_decision_of(pod)
        if (
            failure is None
            or not failure.has_ended
            or (uid and uid != uid_of(pod))
            or failure.decision != decision_of(spec)
        ):
            return None
        now = self._client.clock.now()
        # A time in the future is another machine's clock: it denies no longer than the longest backoff.
        if not now < failure.denied_until(self._longest) <= now + 2 * self._longest:
            return None
        for entry in failure.objects:
            is_node = entry.kind == NODE
            key = ObjectKey("", failure.decision.node) if is_node else ObjectKey(review.namespace, entry.name)
            present = pod_print(pod) if entry.kind == POD else await self._print(entry.kind, key)
            if present != entry.print:
                return None
        return failure, str(condition_of(pod, names.CONDITION_POD_BOUND).get("message") or "")

    async def _print(self, kind: str, key: ObjectKey) -> str:
        """Return the present print of an object; empty for a kind that only a newer version knows."""
        resource = _RESOURCES.get(kind)
        if resource is None:
            return ""
        try:
            stored = await self._client.get(resource, key.namespace, key.name)
        except NotFound:
            return ABSENT
        return node_print(stored) if kind == NODE else version_of(stored)

    def _error(self, failure: FailedDecision, sentence: str) -> FieldError:
        now = self._client.clock.now()
        left = (failure.denied_until(self._longest) - now).total_seconds()
        objects = ", ".join(map(str, failure.objects))
        message = (
            f"this decision failed {max(0.0, (now - failure.last).total_seconds()):.0f} s ago, and would fail again: "
            f"{failure.reason}: {sentence}; decide for another node, or repeat it in {left:.0f} s or when one "
            f"of these has changed: {objects}"
        )
        return FieldError(REPEATED, "spec.selectedNode", failure.decision.node, message)

    def _on_event(self, _: EventType, __: ObjectKey, ___: Object | None, new: Object | None) -> None:
        if new is None or not new["podUID"]:
            return
        now = self._client.clock.monotonic()
        self._failures[new["podUID"]] = now
        self._failures.move_to_end(new["podUID"])
        oldest = now - 2 * self._longest.total_seconds()
        while self._failures and (len(self._failures) > MAX_PODS or next(iter(self._failures.values())) < oldest):
            self._failures.popitem(last=False)


def transform_request(request: dict[str, Any]) -> Object | None:
    """Transform: keep identity and pod UID of a Failed request."""
    if status_of(request).get("phase") != Phase.FAILED.value:
        return None
    return {"metadata": identity_of(request), "podUID": _pod_uid(request)}


def _pod_uid(request: Object) -> str:
    spec = request.get("spec")
    uid = spec.get("podUID") if isinstance(spec, Mapping) else None
    return uid if isinstance(uid, str) and uid else str(owner_pod_uid(request) or "")
