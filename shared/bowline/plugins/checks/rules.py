"""Which checks a pod needs, the object that asks one, and what its answer means. Pure."""

import re
from collections.abc import Iterable
from typing import Any, Final

from bowline.api import names
from bowline.api.bindrequest import BindRequest
from bowline.api.failed_decision import condition_of
from bowline.api.field_error import FieldError
from bowline.api.meta import Object, ObjectRef, is_deleting, key_of, pod_owner, uid_of, version_of
from bowline.api.rule import DenialCause, Rule
from bowline.framework.interface.status import Status
from bowline.framework.reason import Reason
from bowline.plugins.checks.config import Check

UNKNOWN: Final = Rule(
    "checks/unknown",
    f"the annotation `{names.CHECKS}` of a new pod names a check that is not configured",
    cause=DenialCause.NOT_SUPPORTED,
)
CHANGED: Final = Rule(
    "checks/changed",
    f"the annotation `{names.CHECKS}` of a pod changes: its bind may have asked the checks already",
    cause=DenialCause.FORBIDDEN,
)
RULES: Final = (UNKNOWN, CHANGED)

READY: Final = "Ready"
EVERYWHERE: Final = "*"
# In characters: of a controller's sentence, and of the annotation that a tenant writes.
MAX_MESSAGE: Final = 1024
MAX_ANNOTATION: Final = 4096
_WORD = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
_DENIED: Final = "Denied"


def required_checks(pod: Object, checks: Iterable[Check]) -> tuple[str, ...]:
    """Return the names of the checks that the pod needs, each once: those of its namespace, then those it names."""
    namespace = key_of(pod).namespace
    by_namespace = [check.name for check in checks if {namespace, EVERYWHERE} & set(check.namespaces)]
    return tuple(dict.fromkeys([*by_namespace, *named_checks(pod)]))


def named_checks(pod: Object) -> tuple[str, ...]:
    """Return the checks that the pod's annotation names."""
    text = (_annotation(pod) or "")[:MAX_ANNOTATION]
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def annotation_errors(pod: Object, old: Object | None, configured: Iterable[str]) -> Iterable[FieldError]:
    """Yield what is wrong with the annotation of a new pod, or with its change."""
    path, text = f"metadata.annotations[{names.CHECKS}]", _annotation(pod)
    if old is not None:
        before = _annotation(old)
        if text != before:
            message = f"must stay {before!r}; create another pod" if before else "cannot be added; create another pod"
            yield FieldError(CHANGED, path, text, message)
        return
    if len(text or "") > MAX_ANNOTATION:
        yield FieldError(
            UNKNOWN, path, len(text or ""), f"has more than {MAX_ANNOTATION} characters; name fewer checks"
        )
    unknown = [name for name in named_checks(pod) if name not in configured]
    if unknown:
        among = ", ".join(configured) or "none; configure it in args.checks of plugin checks"
        yield FieldError(UNKNOWN, path, text, f"names {', '.join(unknown)}; configured: {among}")


def _annotation(pod: Object) -> str | None:
    text: str | None = (pod["metadata"].get("annotations") or {}).get(names.CHECKS)
    return text


def bind_check(name: str, pod: Object, request: BindRequest, node: str) -> dict[str, Any]:
    """Return the object that asks a check about one request.

    The pod owns it: what remains when nobody is left to delete it goes with the pod.
    """
    pod_name, pod_uid = key_of(pod).name, uid_of(pod)
    return {
        "apiVersion": names.BIND_CHECK_API_VERSION,
        "kind": names.BIND_CHECK_KIND,
        "metadata": {
            "name": f"{name}-{request.uid}",
            "namespace": key_of(pod).namespace,
            "labels": {names.LABEL_CHECK: name, names.LABEL_CHECK_REQUEST: str(request.uid)},
            "ownerReferences": [pod_owner(pod_name, pod_uid)],
        },
        "spec": {
            "check": name,
            "node": node,
            "pod": {"name": pod_name, "uid": pod_uid},
            "request": {"name": request.key.name, "uid": request.uid},
        },
    }


def answer_status(check: Check, stored: Object, question: Object) -> Status:
    """Return what a stored object answers to the request that ``question`` describes."""
    key, ready = key_of(stored), condition_of(stored, READY)
    message = str(ready.get("message") or "")[:MAX_MESSAGE]
    if stored.get("spec") != question["spec"]:
        text = f"BindCheck {key} asks something else; delete it"
    elif is_deleting(stored):
        text = f"BindCheck {key} is being deleted; it is asked again when that is done"
    elif ready.get("status") == "True":
        return Status.ok()
    elif ready.get("status") == "False":
        word = str(ready.get("reason") or "")
        is_own = _WORD.fullmatch(word) and word not in {reason.value for reason in Reason}
        why = f"check {check.name} denies the bind: {message or word or 'its controller gives no reason'}"
        return Status.fatal(why, word if is_own else _DENIED, check.denial_suggestion)
    else:
        text = message or f"its controller has not set condition Ready of BindCheck {key}"
    ref = ObjectRef(names.BIND_CHECK_API_VERSION, names.BIND_CHECK_KIND, key, uid_of(stored), version_of(stored))
    why = f"check {check.name}: {text}"
    return Status.wait(why, ref, timeout=check.timeout, suggestion=check.timeout_suggestion)
