"""A rule of admission: one value, owned by the module that applies it.

Everything else that depends on a rule derives from this value: the cause in a denial, ``bowline lint``,
``lint --explain``, docs/rules.md, the chart's policies and the tests' manifests. A ``FieldError`` carries it.

An example is a part of a manifest in YAML: ``annotations``, ``labels``, ``limits`` and ``requests`` (of the first
container), and any other field of a pod's spec; with ``podName``, the spec of a BindRequest; with ``kind``, a whole
object. A rule without examples depends on what one manifest does not show: the cluster, a former version of the
object, or another component.
Decision 260.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

_ID = re.compile(r"[^/\s]+/[^/\s]+")


class DenialCause(StrEnum):
    """The cause of a denial in the API server's vocabulary, for clients that read it (``metav1.CauseType``)."""

    DUPLICATE = "FieldValueDuplicate"
    FORBIDDEN = "FieldValueForbidden"
    INTERNAL = "InternalError"
    INVALID = "FieldValueInvalid"
    NOT_FOUND = "FieldValueNotFound"
    NOT_SUPPORTED = "FieldValueNotSupported"
    REQUIRED = "FieldValueRequired"
    TOO_LONG = "FieldValueTooLong"
    TOO_MANY = "FieldValueTooMany"
    TYPE_INVALID = "FieldValueTypeInvalid"


class Severity(StrEnum):
    """What an object that violates the rule gets."""

    DENIES = "denies"
    WARNS = "warns"


@dataclass(frozen=True, slots=True)
class CelForm:
    """The rule as a policy of the API server. ``when``: CEL that is true for a pod that violates the rule.

    ``key``: CEL of the name of the annotation that the error is about.
    """

    when: str
    key: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule. ``id`` is ``<plugin>/<rule>``, stable across releases; ``meaning``, when it applies, in Markdown.

    ``text``: the message of its errors, as far as it is the same for all; ``cel``: its form in the chart's policy, in
    which the message is this text. ``needs_whole``: it is about what an object lacks, so a part of one does not
    violate it. Raises ValueError for an ``id`` of another form.
    """

    id: str
    meaning: str
    severity: Severity = Severity.DENIES
    cause: DenialCause = DenialCause.INVALID
    text: str = ""
    invalid: str = ""
    valid: str = ""
    cel: CelForm | None = None
    needs_whole: bool = False

    def __str__(self) -> str:
        return self.id

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(f'the id of a rule must be "<plugin>/<rule>", not {self.id!r}')


def page_of(rule: Rule, docs_url: str) -> str:
    """Return the address of a rule in published documentation; empty if ``docs_url`` is."""
    return f"{docs_url}/rules.html#{rule.id.replace('/', '')}" if docs_url else ""
