"""The hooks: one row for each admission path, with everything the code knows about it.

A hook is a path of the listener. Its row names the objects that it reviews, and the method of the admission chain
that reviews them. Routing, the kind check and the call of the chain all read this table. Pure; independent of HTTP.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, NamedTuple

from bowline.api import names
from bowline.api.field_error import FieldError
from bowline.framework.admission import ALLOWED, AdmissionChain, Verdict
from bowline.framework.interface.plugin import AdmissionInfo
from bowline_webhook.workloads import review_workload

# Group and kind of an object.
Kind = tuple[str, str]
_POD: Final[Kind] = ("", "Pod")
_BIND_REQUEST: Final[Kind] = (names.GROUP, names.KIND)
_EPHEMERAL: Final = "ephemeralcontainers"


class Review(NamedTuple):
    """One decoded request. ``errors`` are those of the AdmissionReview itself; it is then denied without a review.

    ``object``: empty if there is none. A tuple: the constructor of a frozen dataclass takes several times as long.
    """

    uid: str
    object: dict[str, Any]
    group: str = ""
    kind: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    operation: str = ""
    user: str = ""
    old: dict[str, Any] | None = None
    errors: tuple[FieldError, ...] = ()


Call = Callable[[AdmissionChain, Review, AdmissionInfo], Verdict]


def _mutate_pod(chain: AdmissionChain, review: Review, info: AdmissionInfo) -> Verdict:
    # Mutations apply to fields that are immutable after creation; a patch on update would be rejected.
    return chain.admit_pod(review.object, info) if info.operation == "CREATE" else ALLOWED


def _validate_workload(chain: AdmissionChain, review: Review, info: AdmissionInfo) -> Verdict:
    workload = chain.workloads[review.group, review.kind]
    return review_workload(chain, workload, review.object, review.old, info)


class Hook(StrEnum):
    """A hook; the value is its URL path.

    - ``object_kind``: group and kind of its objects; None for the workload kinds that the chain is configured for.
    - ``subresource``: the only one that it reviews; empty for the object itself.
    - ``is_final``: runs after all mutation, so its verdict is the last one.
    - ``call``: reviews an object of this hook.
    """

    object_kind: Kind | None
    subresource: str
    is_final: bool
    call: Call

    def __new__(
        cls, path: str, object_kind: Kind | None, call: Call, subresource: str = "", is_final: bool = False
    ) -> "Hook":
        hook = str.__new__(cls, path)
        hook._value_ = path
        hook.object_kind, hook.subresource, hook.is_final = object_kind, subresource, is_final
        hook.call = call
        return hook

    MUTATE_PODS = "/mutate/pods", _POD, _mutate_pod
    VALIDATE_PODS = "/validate/pods", _POD, lambda c, r, info: c.validate_pod(r.object, r.old, info), "", True
    # The only hook on BindRequests: a scheduler waits for it in its cycle.
    MUTATE_BIND_REQUESTS = (
        "/mutate/bindrequests",
        _BIND_REQUEST,
        lambda c, r, info: c.admit_bind_request(r.object, info, r.old),
    )
    VALIDATE_WORKLOADS = "/validate/workloads", None, _validate_workload
    MUTATE_EPHEMERAL_CONTAINERS = (
        "/mutate/ephemeralcontainers",
        _POD,
        lambda c, r, info: c.admit_ephemeral_containers(r.object, r.old, info),
        _EPHEMERAL,
    )
    VALIDATE_EPHEMERAL_CONTAINERS = (
        "/validate/ephemeralcontainers",
        _POD,
        lambda c, r, info: c.validate_ephemeral_containers(r.object, r.old, info),
        _EPHEMERAL,
        True,
    )

    def is_for(self, review: Review, chain: AdmissionChain) -> bool:
        """Return whether the hook reviews this kind and subresource."""
        kind = (review.group, review.kind)
        if self.object_kind is None:
            return kind in chain.workloads
        return kind == self.object_kind and review.subresource == self.subresource
