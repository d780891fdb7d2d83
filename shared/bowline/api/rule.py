"""A rule of admission: one value, owned by the module that applies it.

Everything else that depends on a rule derives from this value: the cause in a denial, ``bowline lint``,
``bowline rule``, docs/rules.md, the chart's policies and the tests' manifests. A ``FieldError`` carries it.

An example is a part of a manifest in YAML: ``annotations``, ``labels``, ``limits`` and ``requests`` (of the first
container), and any other field of a pod's spec; with ``podName``, the spec of a BindRequest; with ``kind``, a whole
object. A rule without examples depends on what one manifest does not show: the cluster, a former version of the
object, or another component.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

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

    ``text`` and ``remedy``: what must hold and what to do, as far as they are the same for all its errors; ``cel``:
    its form in the chart's policy, whose message they are. ``needs_whole``: it is about what an object lacks, so a
    part of one does not violate it. Raises ValueError for an ``id`` of another form.
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
    remedy: str = ""

    def __str__(self) -> str:
        return self.id

    @property
    def message(self) -> str:
        """The message of an error of which nothing more is known."""
        return f"{self.text}; {self.remedy}" if self.remedy else self.text

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(f'the id of a rule must be "<plugin>/<rule>", not {self.id!r}')


# The field of a denial's cause that is about the object as a whole, or about the denial itself.
PRODUCT_FIELD: Final = "bowline"


def rules_text(rules: Iterable[Rule]) -> str:
    """Return the ids of rules as one value for programs, each once.

    It is an audit annotation, and the reason of a denial's last cause, whose field is ``PRODUCT_FIELD``: no client
    has to look for a rule in a message.
    """
    return ",".join(dict.fromkeys(rule.id for rule in rules))


def rules_in(causes: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Return the ids of the rules in the causes of a denial, each as field and reason; none of another's denial."""
    reasons = [reason for field, reason in causes if field == PRODUCT_FIELD]
    return frozenset(entry for reason in reasons for entry in reason.split(",") if _ID.fullmatch(entry))


def page_of(rule: Rule, docs_url: str) -> str:
    """Return the address of a rule in published documentation; empty if ``docs_url`` is."""
    return f"{docs_url}/rules.html#{rule.id.replace('/', '')}" if docs_url else ""
