"""The Status of an attempt to share a device: what its pod lacks, and what the answers of its groups mean for it.

Pure.
"""

import re
from collections.abc import Sequence
from datetime import timedelta

from bowline.api import names
from bowline.api.bindrequest import ResourceType
from bowline.api.gpu_operator import OperatorMode, is_fractioned
from bowline.framework.interface.status import UNLIMITED, Fatal
from bowline.framework.reason import Reason
from bowline.plugin import BindContext, Object, ObjectRef, Settings, Status, Suggestion
from bowline.plugins.gpu_sharing.admission import nri_errors
from bowline.plugins.gpu_sharing.reservation import ELSEWHERE, RELEASE_RETRY, Held, Pending, Unreleased
from bowline.plugins.gpu_sharing.rules import is_prepared, request_error, share_of

_COUNT = re.compile(r"[0-9]{1,4}")


def unreleased_status(release_failures: list[Unreleased]) -> Status:
    """Return the WAIT of a pod that needs a device whose reservation cannot be deleted: not its own failure."""
    refs = [ObjectRef("v1", "Pod", entry.reservation.key, entry.reservation.uid) for entry in release_failures]
    problems = "; ".join(f"reservation pod {entry.reservation.key}: {entry.why}" for entry in release_failures)
    remedy = "" if all(entry.reservation.deleting for entry in release_failures) else "; delete that pod"
    why = f"a GPU of the node is still reserved without a user, and cannot be released: {problems}{remedy}"
    return Status.wait(why, *refs, retry_after=RELEASE_RETRY, timeout=UNLIMITED, suggestion=ELSEWHERE)


def unsharable_status(ctx: BindContext, mode: OperatorMode, settings: Settings) -> Fatal | None:
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
    asked = (pod["metadata"].get("annotations") or {}).get(names.GPU_FRACTION_NUM_DEVICES, "")
    decided = len(ctx.spec.gpu_groups)
    if _COUNT.fullmatch(asked) and int(asked) != decided:
        why = (
            f"spec.receivedGPU.count: {decided} must be {int(asked)}, the {names.GPU_FRACTION_NUM_DEVICES} of pod "
            f"{ctx.request.pod_key}; have the scheduler name one group for each device"
        )
        return Status.fatal(why, Reason.INVALID)
    return undelivered_status(pod, ctx.node, mode, settings)


def undecided_status(ctx: BindContext) -> Status | None:
    """Return the failure of a pod with a share for which none was decided; None for any other pod."""
    if ctx.pod is None or not is_prepared(ctx.pod):
        return None
    why = (
        f"spec.receivedResourceType: {ctx.spec.received_resource_type or ResourceType.REGULAR} must be "
        f"{ResourceType.FRACTION}, with a group for each device: pod {ctx.request.pod_key} requests a share of a "
        "GPU, without which its containers do not start; have the scheduler decide one"
    )
    return Status.fatal(why, Reason.INVALID)


def undelivered_status(pod: Object, node: Object | None, mode: OperatorMode, settings: Settings) -> Fatal | None:
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
    return Status.fatal(why, Reason.REJECTED, ELSEWHERE)


def pending_status(answers: Sequence[Held | Pending], limit: timedelta) -> Status | None:
    """Return what a request waits for, for agents ``limit`` at most; None if it has all its devices."""
    pending = [answer.reservation for answer in answers if isinstance(answer, Pending)]
    if pending:
        refs = [reservation.ref for reservation in pending]
        causes = dict.fromkeys(filter(None, (reservation.status_reason for reservation in pending)))
        why = ": ".join(["the agent has not reported the device yet", *causes])
        return Status.wait(why, *refs, timeout=limit, suggestion=ELSEWHERE)
    devices = [answer.device for answer in answers if isinstance(answer, Held)]
    if len(set(devices)) != len(devices):
        return Status.retry(f"several groups have the same device ({', '.join(devices)}); their agents check again")
    return None
