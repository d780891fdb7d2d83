"""Gives a pod the devices of its resource claims (DRA) before it is bound, and takes them back if it is not.

The request brings the allocations that the scheduler decided; this plugin writes them into the claims and reserves
them for the pod. What must be written is decided in ``rules``, by looking at the claims alone: there is nothing to
remember between passes. It allocates nothing of its own, and it never frees the claims of a bound pod, or of one that
is gone: kube-controller-manager does, when a pod ends.
"""

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from shared.api.bindrequest import BindRequest, Demand, decode_spec
from shared.api.field_error import FieldError
from shared.api.meta import Object
from shared.framework.binding.handle import EventSource
from shared.framework.binding.post import refusal
from shared.framework.plugin import RUN_PARALLEL, SKIP_PARALLEL, AdmissionInfo, Plugin, Preflight
from shared.framework.status import Reason, Status
from shared.kube.errors import ApiError
from shared.kube.resources import RESOURCECLAIMS
from shared.plugins.dynamic_resources.metrics import ClaimMetrics
from shared.plugins.dynamic_resources.preparation import Preparation
from shared.plugins.dynamic_resources.rules import request_faults, request_warnings
from shared.plugins.dynamic_resources.writer import ClaimsNotServedError

if TYPE_CHECKING:
    from shared.framework.binding.context import BindContext
    from shared.framework.binding.handle import Handle

SERVED = frozenset({Demand.CLAIMS, Demand.EXTENDED_CLAIM})


class DynamicResources(Plugin):
    """Allocates, reserves and releases resource claims."""

    name = "dynamic_resources"
    _preparation: Preparation

    # --- admission ---

    def validate_bind_request(self, request: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        spec, _ = decode_spec(request.get("spec"))
        return [*request_faults(spec), *request_warnings(spec)] if spec is not None else ()

    # --- facts about a request ---

    def serves(self, request: BindRequest) -> Collection[Demand]:
        return SERVED

    def leaves_effects(self, request: BindRequest) -> bool:
        """Return whether claims will be written; those without an allocation in the request are only looked at."""
        return request.spec is not None and not SERVED.isdisjoint(request.spec.demands)

    # --- binding ---

    async def setup(self, handle: "Handle") -> None:
        self._preparation = Preparation(handle.client, ClaimMetrics(handle.metrics))

    def preflight(self, c: "BindContext") -> Preflight:
        """Claims depend on no volume and no GPU group, so neighbours may run at the same time."""
        has_claims = bool(c.pod and c.pod["spec"].get("resourceClaims"))
        extended = c.spec.extended_resource_claim_allocation is not None
        return RUN_PARALLEL if has_claims or extended or self.leaves_effects(c.request) else SKIP_PARALLEL

    async def pre_bind(self, c: "BindContext") -> Status:
        """Take the pod's claims; a pod is never bound without all of them."""
        assert c.pod is not None  # noqa: S101 - an attempt is only made of a pod that is there
        try:
            return await self._preparation.take(c.pod, c.node, c.spec, c.state)
        except ClaimsNotServedError:
            return NOT_SERVED
        except ApiError as error:
            return refusal(error.message)

    async def rollback(self, c: "BindContext", why: Status) -> Status:
        """Give the claims back, unless the pod is bound or gone."""
        if c.request.spec is None:
            return Status.ok()
        try:
            return await self._preparation.give_back(c.request, c.request.spec)
        except ClaimsNotServedError:
            return Status.ok()
        except ApiError as error:
            return Status.retry(error.message)

    def event_sources(self) -> Iterable[EventSource]:
        """Watch that claims change, not what they say: whoever waits for one has named it, and reads it anew."""
        return (EventSource(RESOURCECLAIMS.as_metadata(), keys=lambda _: (), slim=identity),)


def identity(claim: dict[str, Any]) -> Object:
    """Return the least that a watch must keep of an object; a cluster may have a claim for every pod."""
    kept = ("namespace", "name", "uid", "resourceVersion")
    return {"metadata": {field: claim["metadata"][field] for field in kept}}


NOT_SERVED = Status.fatal(
    f"the cluster does not serve {RESOURCECLAIMS.api_version}, which Kubernetes 1.34 and newer do: claims cannot be "
    "allocated; upgrade it, or keep pods with resource claims from it",
    Reason.NO_PLUGIN,
)
