"""Which users may bind a pod. Pure."""

from collections.abc import Collection, Iterator

from shared.api import names
from shared.api.field_error import FieldError, shown
from shared.api.meta import ObjectKey
from shared.framework.plugin import AdmissionInfo


def guard_faults(pod: ObjectKey, info: AdmissionInfo, allowed: Collection[str]) -> Iterator[FieldError]:
    """Yield an error if the user may not bind the pod. Requests missing in the watch cache guard nothing."""
    if pod not in info.pods_with_bindrequest or info.user in allowed:
        return
    message = (
        f"pod {pod} has a {names.KIND} and is bound by Bowline's reconciler, not by user {shown(info.user)}; leave "
        f"it to the {names.KIND}, delete that one first, or list the user in allowedUsers of plugin binding_guard"
    )
    yield FieldError("binding_guard/user", "metadata.name", pod.name, message)
