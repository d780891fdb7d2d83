"""What a pod that is out of scope probably means: warnings about its scheduler. Pure.

No plugin reviews such a pod, and nothing denies it. With a scheduler that does not exist it stays Pending without a
message.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from bowline.api import names
from bowline.api.field_error import FieldError, annotation_path
from bowline.api.meta import Object
from bowline.api.rule import Rule, Severity
from bowline.framework.config import Settings

SCHEDULER: Final = Rule(
    "scope/scheduler",
    "a pod of a scheduler that is not in `schedulerNames` requests a share: no component prepares it",
    severity=Severity.WARNS,
    invalid='annotations: {gpu-fraction: "0.5"}\nschedulerName: default-scheduler',
    valid='annotations: {gpu-fraction: "0.5"}',
)
SCHEDULER_NAME: Final = Rule(
    "scope/scheduler-name",
    "a pod's scheduler is not in `schedulerNames`, and resembles one that is",
    severity=Severity.WARNS,
    invalid="schedulerName: kai-schedular",
    valid="schedulerName: kai-scheduler",
)
RULES: Final = (SCHEDULER, SCHEDULER_NAME)

# How alike a misspelt scheduler name is to the one that is meant: kai-schedular, not another scheduler.
_LIKENESS: Final = 0.85


def warnings(settings: Settings, scheduler: str, metadata: Object, field: str) -> Iterator[FieldError]:
    """Yield what a pod of a scheduler that the configuration does not list probably means.

    ``metadata``: of the pod, well-formed; ``field``: where its object has the name of its scheduler.
    """
    ours = settings.scheduler_names
    # One of a name with a suffix is another instance of that scheduler.
    candidates = [name for name in ours if not scheduler.startswith(name) and not name.startswith(scheduler)]
    is_default = scheduler == names.DEFAULT_SCHEDULER  # it exists in every cluster, so it is no misspelt name
    for name in () if is_default else get_close_matches(scheduler, candidates, 1, _LIKENESS):
        message = f"a pod of an unknown scheduler stays Pending without a message; did you mean {name}?"
        yield FieldError(SCHEDULER_NAME, "spec.schedulerName", scheduler, message)
    annotations = metadata.get("annotations") or {}
    message = f"ignored by {scheduler}; for a GPU share set {field} to {' or '.join(ours)}"
    for key in names.SHARE_ANNOTATIONS:
        if key in annotations:
            yield FieldError(SCHEDULER, annotation_path(key), annotations[key], message)
