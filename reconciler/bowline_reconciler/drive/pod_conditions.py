"""Writes the PodBound condition and the nomination of pods: after the status, best effort, with bounded retries.

The condition repeats, for the pod's owner, what the request's status and event report. A webhook on pods/status that
is down, slow or denies the write must therefore neither change a result nor occupy a worker of the reconciler.
Separate tasks write the reports, only the newest of each pod, and repeat one that fails until it is older than
RETRY_FOR. Reports pending at shutdown are lost.

Beside it a condition for programs names the decision (``bowline.api.failed_decision``). It is written for each
failure, in the same patch, and removed by the bind that follows. Decision 200.

A nomination is a write of a reported wait or of a failure, never of a bind without either.
"""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from bowline.api import names
from bowline.api.failed_decision import FailedDecision, condition_of, failed_decision_of
from bowline.api.meta import Object, ObjectKey, ObjectUID, format_time, key_of, uid_of, version_of
from bowline.kube.calls import PatchType
from bowline.kube.client import KubeClient
from bowline.kube.errors import ApiError, Conflict, Invalid, KubeError, NotFound
from bowline.kube.resources import PODS
from bowline.runtime.backoff import ItemBackoff
from bowline.runtime.fairness import FairPool
from bowline.runtime.workers import DONE, ReconcileError, Result, run_workers
from bowline.runtime.workqueue import RETRY_BACKOFF, WorkQueue
from bowline_reconciler.decide.actions import Nomination, PodBound

log = logging.getLogger(__name__)

WORKERS = 4
RETRY_FOR = timedelta(seconds=15)
# Conflicts on an unbound pod, from other writers; no kubelet writes to it yet.
MAX_CONFLICT_TRIES = 5
# The API server waits up to 30 s for a webhook: many such calls would stop the reports of all other pods.
TRY_TIMEOUT_S = 5.0
# A report is an object reference and a sentence. More than this are pending only while writes hang; the namespace
# with the most loses its oldest then.
MAX_PENDING = 2_000
_CONDITIONS = (names.CONDITION_POD_BOUND, names.CONDITION_DECISION_FAILED)


@dataclass(frozen=True, slots=True)
class _Report:
    pod: Object  # as of the attempt's snapshot: its identity and its nomination
    condition: PodBound | None
    nomination: Nomination | None
    since: datetime


# A pod of the same name is another one, with reports of its own.
_PodID = tuple[ObjectKey, ObjectUID]


class PodConditions:
    """Writes pod conditions in the background. ``run`` it while leading; otherwise it takes none."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._pending: dict[_PodID, _Report] = {}
        self._room: FairPool[_PodID] = FairPool(MAX_PENDING)
        self._queue: WorkQueue[_PodID] = WorkQueue(
            group=lambda pod_id: pod_id[0].namespace,
            workers=WORKERS,
            backoff=ItemBackoff(*RETRY_BACKOFF, random=client.random.random),
            is_open=False,
        )

    def __len__(self) -> int:
        return len(self._pending)

    async def run(self) -> None:
        """Write until cancelled; what is pending then is dropped."""
        try:
            await run_workers(self._queue, self._write, self._on_error)
        finally:
            self._pending, self._room = {}, FairPool(MAX_PENDING)

    def schedule(self, pod: Object, condition: PodBound | None, nomination: Nomination | None = None) -> None:
        """Queue what the pod does not have yet; it replaces what is pending of the same pod."""
        pod_id = (key_of(pod), uid_of(pod))
        pending = self._pending.get(pod_id)
        if pending is not None:
            condition, nomination = condition or pending.condition, _newer(pending.nomination, nomination)
        if pod["spec"].get("nodeName"):
            condition, nomination = condition if condition is not None and condition.status == "True" else None, None
        if not _content(pod, condition, nomination, self._client.clock.now()):
            return
        if not self._queue.is_open:
            return
        reduced_pod = {
            "metadata": {name: pod["metadata"].get(name) for name in ("name", "namespace", "uid", "resourceVersion")},
            "status": {
                "nominatedNodeName": (pod.get("status") or {}).get("nominatedNodeName"),
                "conditions": [entry for kind in _CONDITIONS if (entry := condition_of(pod, kind))],
            },
        }
        self._pending[pod_id] = _Report(reduced_pod, condition, nomination, self._client.clock.now())
        for surplus in self._room.put(pod_id[0].namespace, pod_id):
            del self._pending[surplus]
        self._queue.add(pod_id)

    def _drop(self, pod_id: _PodID) -> None:
        if self._pending.pop(pod_id, None) is not None:
            self._room.drop(pod_id[0].namespace, pod_id)

    async def _write(self, pod_id: _PodID) -> Result:
        report = self._pending.get(pod_id)
        if report is None:
            return DONE
        try:
            async with asyncio.timeout(TRY_TIMEOUT_S):
                await self.patch(report.pod, report.condition, report.nomination, report.since)
        except (KubeError, TimeoutError) as error:
            is_denied = isinstance(error, ApiError) and not isinstance(error, Conflict)
            why = str(error) or "timed out"
            if self._client.clock.now() - report.since < RETRY_FOR and not is_denied:
                raise ReconcileError(why) from error
            log.warning("the pod's condition PodBound is not written", extra={"pod": str(pod_id[0]), "error": why})
        if self._pending.get(pod_id) is report:
            self._drop(pod_id)
        return DONE

    async def patch(
        self, pod: Object, condition: PodBound | None, nomination: Nomination | None, since: datetime
    ) -> None:
        """Write the PodBound condition and the nomination of this pod; not if it no longer exists or was replaced.

        Only True is written for a bound pod: the other writes require the resourceVersion that was seen unbound, so
        that one still in flight when another leader binds the pod fails. Own writes of the attempt change the version
        as well, hence the retries with a new read. Raises the client's errors, including a denial by a policy or a
        webhook.
        """
        key, uid = key_of(pod), uid_of(pod)
        with suppress(NotFound):
            if condition is not None and condition.status == "True":
                return await self._patch_status(key, {"uid": uid}, _content({}, condition, None, since))
            for tries_left in reversed(range(MAX_CONFLICT_TRIES)):
                content = _content(pod, condition, nomination, since)
                if not content:
                    return None
                try:
                    return await self._patch_status(key, {"uid": uid, "resourceVersion": version_of(pod)}, content)
                except Conflict:
                    if not tries_left:
                        raise
                pod = await self._client.get(PODS, key.namespace, key.name)
                if uid_of(pod) != uid or pod["spec"].get("nodeName"):
                    return None
        return None

    async def _patch_status(self, pod: ObjectKey, guard: Mapping[str, str], content: Mapping[str, Any]) -> None:
        body = {"metadata": dict(guard), "status": dict(content)}
        try:
            await self._client.patch(
                PODS,
                pod.namespace,
                pod.name,
                body,
                subresource="status",
                content_type=PatchType.STRATEGIC,
                field_manager=names.FIELD_MANAGER_RECONCILER,
            )
        except Invalid as error:
            # The API server's reply to a UID other than the stored one: the pod was replaced.
            if not any(cause.field == "metadata.uid" for cause in error.causes):
                raise

    def _on_error(self, pod_id: _PodID) -> None:
        log.exception("writing a pod's condition failed", extra={"pod": str(pod_id[0])})
        self._drop(pod_id)


def _newer(pending: Nomination | None, nomination: Nomination | None) -> Nomination | None:
    """Return which of a pod's nominations is written: the withdrawal of one node never removes that of another."""
    if nomination is None or pending is None:
        return nomination or pending
    is_late = nomination.is_withdrawn and not pending.is_withdrawn and nomination.node != pending.node
    return pending if is_late else nomination


def _content(
    pod: Object, condition: PodBound | None, nomination: Nomination | None, now: datetime
) -> Mapping[str, Any]:
    """Return the patch of the pod's status for what it does not have yet; empty if there is nothing."""
    status = pod.get("status") or {}
    content: dict[str, Any] = {}
    if condition is not None and not _has(pod, condition):
        content["conditions"] = stored_conditions(pod, condition, now)
    if nomination is not None:
        is_nominated = status.get("nominatedNodeName") == nomination.node
        if is_nominated == nomination.is_withdrawn:
            content["nominatedNodeName"] = None if nomination.is_withdrawn else nomination.node
    return content


def stored_conditions(pod: Object, condition: PodBound, now: datetime) -> list[Mapping[str, Any]]:
    """Return the entries of the conditions' patch. ``pod``: with its present conditions."""
    pod_bound: dict[str, Any] = {
        "type": names.CONDITION_POD_BOUND,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": _since(pod, condition) or format_time(condition.since or now),
    }
    if condition.decision is None:
        return [pod_bound, {"$patch": "delete", "type": names.CONDITION_DECISION_FAILED}]
    failure = FailedDecision(
        condition.decision,
        condition.reason,
        now,
        now,
        condition.has_ended,
        int(condition.has_ended),
        condition.denial,
        condition.objects,
    )
    return [pod_bound, failure.after(failed_decision_of(pod)).as_condition()]


def _since(pod: Object, condition: PodBound) -> str:
    """Return since when the pod has this cause, whatever the node; empty for another one."""
    stored_condition = condition_of(pod, names.CONDITION_POD_BOUND)
    # All failed attempts have one reason; of the others, the message may name the node.
    is_same_reason = condition.reason != names.EVENT_RETRY and stored_condition.get("reason") == condition.reason
    is_same = is_same_reason or stored_condition.get("message") == condition.message
    if condition.status != "False" or stored_condition.get("status") != "False" or not is_same:
        return ""
    return str(stored_condition.get("lastTransitionTime") or "")


def _has(pod: Object, condition: PodBound) -> bool:
    if condition.has_ended:
        return False  # the time of the failure is new
    failure = failed_decision_of(pod)
    if (failure.decision if failure is not None else None) != condition.decision:
        return False
    fields, stored_condition = ("status", "reason", "message"), condition_of(pod, names.CONDITION_POD_BOUND)
    return [stored_condition.get(field) for field in fields] == [getattr(condition, field) for field in fields]
