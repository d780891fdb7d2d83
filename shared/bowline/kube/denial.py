"""Who denied a request, and why: what the API server states in a sentence and in no field.

A metav1.Status has fields for the decision (``code``, ``reason``, ``details.causes``). It has none for the policy or
the webhook that denied the request, the webhook that could not be called, the quota, the missing right, and the
fields by which a resource cannot be selected. Events and conditions of controllers repeat the same sentences. This
limit is the API server's; it is the only reason to read a sentence. So all of them are read here, and no other module
reads one. What Bowline's own webhook denies has fields: ``bowline.api.rule.rules_in``.
"""

import re
from dataclasses import dataclass
from typing import Final

from bowline.api import names

_POLICY: Final = re.compile(r"ValidatingAdmissionPolicy '([^']+)'")
_WEBHOOK: Final = re.compile(r'admission webhook "([^"]*)" denied the request')
_FAILED_WEBHOOK: Final = re.compile(r'failed calling webhook "([^"]*)"')
# What controllers put before the answer to a create; the name of the pod is another one at each try.
_CREATION: Final = re.compile(
    r"(?:\(combined from similar events\): )?(?:error creating: |create pod \S+ in statefulset \S+ failed error: )?"
    r'(?:pods? "[^"]*" is (?:forbidden|invalid): )?',
    re.IGNORECASE,
)
_QUOTA: Final = re.compile(r"exceeded quota: ([^,\s]+)")
# The authorizer's; a policy's denial is worded differently.
_RIGHT: Final = re.compile(
    r'\bcannot (\w+) resource "([^"]+)"(?: in API group "([^"]*)")?(?: in the namespace "([^"]+)")?'
)
_NO_DRY_RUN: Final = "does not support dry run"
# For a custom resource without selectable fields, and for a resource without its own conversion.
_NO_SUCH_FIELD: Final = ("field label not supported", "is not a known field selector")


@dataclass(frozen=True, slots=True)
class MissingRight:
    """A right that a user lacks. ``resource``: its plural, with the subresource. ``namespace``: empty: of all."""

    verb: str
    resource: str
    group: str
    namespace: str


@dataclass(frozen=True, slots=True)
class Denial:
    """What a message of the API server states of a denial; each part is empty where it states nothing of it.

    - ``policy``: the ValidatingAdmissionPolicy that denied the request.
    - ``webhook``: the admission webhook that denied it. ``failed_webhook``: the one that could not be called.
    - ``quota``: the ResourceQuota that it exceeds. ``right``: what the user may not do.
    - ``has_no_dry_run``: a webhook would have to be called that does not support dry runs.
    - ``has_no_such_field``: the resource cannot be selected by a field of the selection.
    """

    policy: str = ""
    webhook: str = ""
    failed_webhook: str = ""
    quota: str = ""
    right: MissingRight | None = None
    has_no_dry_run: bool = False
    has_no_such_field: bool = False

    @classmethod
    def of(cls, message: str) -> "Denial":
        """Read a message; any text is one."""
        right = _RIGHT.search(message)
        return cls(
            policy=_name(_POLICY, message),
            webhook=_name(_WEBHOOK, message),
            failed_webhook=_name(_FAILED_WEBHOOK, message),
            quota=_name(_QUOTA, message),
            right=MissingRight(right[1], right[2], right[3] or "", right[4] or "") if right is not None else None,
            has_no_dry_run=_NO_DRY_RUN in message,
            has_no_such_field=any(text in message for text in _NO_SUCH_FIELD),
        )

    @classmethod
    def of_pod(cls, message: str) -> str:
        """Return why a controller could not create a pod: the same text at each try."""
        prefix = _CREATION.match(message)
        return message[prefix.end() :] if prefix is not None else message

    @property
    def is_by_webhook(self) -> bool:
        """Whether a webhook ended the request, by its denial or as it could not be called: nothing was stored."""
        return bool(self.webhook or self.failed_webhook)

    @property
    def own_policy(self) -> str:
        """Which of Bowline's own policies denied the request; empty if none did.

        The chart names its policies after the release, whose name is free; this is the name without the release's.
        """
        return next((role for role in names.POLICIES if self.policy.endswith(f"-{role}")), "")


def _name(pattern: re.Pattern[str], message: str) -> str:
    match = pattern.search(message)
    return match[1] if match is not None else ""
