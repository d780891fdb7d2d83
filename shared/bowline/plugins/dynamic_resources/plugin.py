"""Allocates and reserves a pod's ResourceClaims (DRA) before the bind, and releases them if the bind is abandoned.

The request carries the allocations that the scheduler decided; this plugin writes them to the claims and reserves the
claims for the pod. ``rules`` derives the next write from the stored claims alone, so nothing has to be remembered
between attempts. The plugin makes no allocation of its own, and it never releases the claims of a bound or deleted
pod: kube-controller-manager does that when a pod ends.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from bowline.api.meta import key_of
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.interface.waiting import BindTimeoutConfig
from bowline.framework.reason import Reason
from bowline.kube.reflector import Reflector
from bowline.kube.resources import RESOURCECLAIMS
from bowline.plugin import (
    BindContext,
    BindRequest,
    Done,
    EventSource,
    Handle,
    Object,
    ObjectKey,
    Settings,
    Status,
    Waiting,
)
from bowline.plugins.dynamic_resources.admission import SERVED, DynamicResourcesAdmission
from bowline.plugins.dynamic_resources.awaited_claims import AwaitedClaims
from bowline.plugins.dynamic_resources.claim_client import ClaimsNotServedError
from bowline.plugins.dynamic_resources.extended import claims_of
from bowline.plugins.dynamic_resources.reserver import ClaimReserver
from bowline.plugins.dynamic_resources.taint_watch import TaintWatch


class DynamicResources(DynamicResourcesAdmission, BuiltinBindingPlugin[BindTimeoutConfig]):
    """Allocates, reserves and releases resource claims."""

    # Claims depend on no volume and no GPU group.
    parallel = True
    allocations = SERVED
    _reserver: ClaimReserver

    def __init__(self, args: BindTimeoutConfig, settings: Settings) -> None:
        super().__init__(args, settings)
        self._awaited_claims = AwaitedClaims()
        self.taints = TaintWatch()
        self._watch: Reflector | None = None

    # --- binding ---

    async def setup(self, handle: Handle) -> None:
        bind_timeout = self.args.bind_timeout or self.settings.binding.wait_timeout
        self._reserver = ClaimReserver(handle.client, bind_timeout, self.taints)

    async def run(self) -> None:
        """Drop all awaited claims: another process may have bound since."""
        self._discard(self._awaited_claims.clear())
        self._reserver.clear()

    def applies(self, pod: Object, request: BindRequest) -> bool:
        needs_extended = request.spec is not None and request.spec.extended_resource_claim_allocation is not None
        return bool(pod["spec"].get("resourceClaims")) or needs_extended or self.has_side_effects(request, pod)

    async def pre_bind(self, ctx: BindContext) -> Status:
        """Reserve the pod's claims: OK only if all are reserved and their devices are ready."""
        assert ctx.pod is not None  # noqa: S101 - an attempt always has a pod
        self._reserver.forget(ctx.request.key)
        # Before the first read, so that the watch keeps every later event of these claims.
        self._discard(self._awaited_claims.expect(ctx.request.key, claims_of(ctx.pod, ctx.spec)))
        status = None
        try:
            status = await self._reserver.reserve(ctx.pod, ctx.node, ctx.spec, ctx.state)
        except ClaimsNotServedError:
            status = NOT_SERVED
        finally:
            if status is None or not isinstance(status, Waiting):
                self._discard(self._awaited_claims.expect(ctx.request.key, ()))
        return status

    async def rollback(self, ctx: BindContext, why: Status) -> Status:
        """Release the claims, unless the pod is bound or does not exist.

        An API server that does not serve claims may be one of several, or have been started with other flags: what
        was reserved before is not known.
        """
        if ctx.request.spec is None:
            return Status.ok()
        try:
            return await self._reserver.unreserve(ctx.request, ctx.request.spec)
        except ClaimsNotServedError:
            return Done((f"the claims of pod {ctx.request.pod_key} are not read: {_NOT_SERVED}",))

    async def forget(self, key: ObjectKey) -> None:
        self._reserver.forget(key)
        self._discard(self._awaited_claims.expect(key, ()))

    def sizes(self) -> Mapping[str, int]:
        return {"awaitedClaims": len(self._awaited_claims), "withdrawn": self._reserver.withdrawn}

    def event_sources(self) -> Iterable[EventSource]:
        """Watch the metadata of claims, of which those are cached that a request awaits; and tainted devices."""
        return (
            EventSource(RESOURCECLAIMS.as_metadata(), transform=self._transform_claim, attach=self._attach_watch),
            *self.taints.sources(),
        )

    def _transform_claim(self, claim: dict[str, Any]) -> Object | None:
        """Keep identity and version of an awaited claim, drop others: a cluster may have a claim for each pod."""
        if key_of(claim) not in self._awaited_claims:
            return None
        identity = ("namespace", "name", "uid", "resourceVersion")
        return {"metadata": {field: claim["metadata"][field] for field in identity}}

    def _attach_watch(self, reflector: Reflector) -> None:
        self._watch = reflector

    def _discard(self, claims: Iterable[ObjectKey]) -> None:
        if self._watch is not None:
            for key in claims:
                self._watch.discard(key)


_NOT_SERVED = f"the cluster does not serve {RESOURCECLAIMS.api_version}, which Kubernetes 1.34 and newer do"
NOT_SERVED = Status.fatal(
    f"{_NOT_SERVED}: claims cannot be allocated; upgrade it, or keep pods with resource claims from it",
    Reason.NO_PLUGIN,
)
