"""The Status of an attempt to share a device: what its pod lacks, and what the answers of its groups mean for it.

Pure.
"""

from datetime import timedelta

from bowline.api import names
from bowline.api.gpu_operator import OperatorMode, is_fractioned
from bowline.framework.plugin_status import UNLIMITED
from bowline.framework.reason import Reason
from bowline.plugin import BindContext, Object, ObjectRef, Settings, Status, Suggestion
from bowline.plugins.gpu_sharing.admission import nri_errors
from bowline.plugins.gpu_sharing.reservation import (
    RELEASE_RETRY,
    Blocked,
    Full,
    Held,
    Lost,
    Orphaned,
    Pending,
    ReservationState,
    Unreleased,
)
from bowline.plugins.gpu_sharing.rules import request_error, share_of

# Longer than a scheduler takes to place a scaling pod on an existing node. With an autoscaler at its limit the pod is
# never placed; the request then ends, and the scheduler may choose a device that is shared already.
SCALING = timedelta(seconds=10)
# How long a request may wait while a device that pods still use is being reserved again.
RECOVERY = timedelta(seconds=60)


def unreleased_status(release_failures: list[Unreleased]) -> Status:
    """Return the WAIT of a pod that needs a device whose reservation cannot be deleted: not its own failure."""
    refs = [ObjectRef("v1", "Pod", entry.reservation.key, entry.reservation.uid) for entry in release_failures]
    problems = "; ".join(f"reservation pod {entry.reservation.key}: {entry.why}" for entry in release_failures)
    why = f"a GPU of the node is still reserved without a user, and cannot be released: {problems}; delete that pod"
    return Status.wait(
        why, *refs, retry_after=RELEASE_RETRY, timeout=UNLIMITED, suggestion=Suggestion.RESCHEDULE_ELSEWHERE
    )


def unsharable_status(ctx: BindContext, mode: OperatorMode, settings: Settings) -> Status | None:
    """Return the failure of a share that no device can help; None if there is none.

    A pod that the webhook has not reviewed lacks its class too: created again, it gets all.
    """
    invalid, pod = request_error(ctx.spec), ctx.pod or {"metadata": {}, "spec": {}}
    if invalid is not None:
        return Status.fatal(invalid, Reason.INVALID)
    if share_of(pod) is None:
        why = (
            f"pod {ctx.request.pod_key} has no annotation {names.SHARED_GPU_CONFIGMAP} or no container for its "
            "share: it was created while the webhook was unavailable; create it again"
        )
        return Status.fatal(why, Reason.REJECTED, Suggestion.DELETE_POD)
    return undelivered_status(pod, ctx.node, mode, settings)


def undelivered_status(pod: Object, node: Object | None, mode: OperatorMode, settings: Settings) -> Status | None:
    """Return the failure of a share whose container would see no device on the node; None if it may see its devices.

    A pod without a class was admitted because agents of GPU fractioning, or an annotation, give it its devices.
    """
    if is_fractioned(settings.nv_fractions, node):
        return None
    if mode is OperatorMode.NRI:
        error = next(nri_errors(pod), None)
        return Status.fatal(str(error), Reason.REJECTED, Suggestion.DELETE_POD) if error is not None else None
    runtime_class = settings.gpu_sharing.runtime_class_name
    if not runtime_class or pod["spec"].get("runtimeClassName"):
        return None
    why = (
        f"without spec.runtimeClassName, such as {runtime_class}, a share sees no GPU: NVIDIA's GPU operator is not "
        f"in NRI mode, and node {node['metadata']['name'] if node else ''} does not report the condition "
        f"{names.NODE_FRACTIONING_READY} (gpuSharing.nvFractions); create the pod again"
    )
    return Status.fatal(why, Reason.REJECTED, Suggestion.RESCHEDULE_ELSEWHERE)


def lost_status(lost: Full | Lost) -> Status:
    """Return the Status for a device without room, or a reservation that failed. The former ends the request, and an
    overdue agent.
    """
    if isinstance(lost, Full):
        return Status.fatal(lost.why, Reason.DEVICE_CONFLICT, Suggestion.RESCHEDULE_ELSEWHERE)
    if lost.is_overdue:
        return Status.fatal(lost.why, Reason.WAIT_TIMEOUT, Suggestion.RESCHEDULE_ELSEWHERE)
    return Status.retry(lost.why, suggestion=Suggestion.RESCHEDULE_ELSEWHERE)


def first_failure(answers: list[ReservationState], limit: timedelta) -> Status | None:
    """Return the Status for the worst answer; None if the request has all its devices.

    ``limit``: for how long the request waits for agents. An agent that exceeds it ends the request as an expired wait
    does, whichever of the two comes first.
    """
    for answer in answers:
        if isinstance(answer, Orphaned):
            # Not terminal immediately: a scheduler that sees room in the group would choose it again each time.
            return Status.wait(answer.why, *answer.by, timeout=RECOVERY, suggestion=Suggestion.RESCHEDULE_ELSEWHERE)
    for answer in answers:
        if isinstance(answer, Full | Lost):
            return lost_status(answer)
    for answer in answers:
        if isinstance(answer, Blocked):
            why = f"no device can be reserved: {answer.why}"
            return Status.wait(why, answer.by, timeout=SCALING, suggestion=Suggestion.RESCHEDULE_ELSEWHERE)
    pending = [answer.reservation for answer in answers if isinstance(answer, Pending)]
    if pending:
        refs = [reservation.ref for reservation in pending]
        causes = dict.fromkeys(filter(None, (reservation.status_reason for reservation in pending)))
        why = ": ".join(["the agent has not reported the device yet", *causes])
        return Status.wait(why, *refs, timeout=limit, suggestion=Suggestion.RESCHEDULE_ELSEWHERE)
    devices = [answer.device for answer in answers if isinstance(answer, Held)]
    if len(set(devices)) != len(devices):
        return Status.retry(f"several groups have the same device ({', '.join(devices)}); their agents check again")
    return None
