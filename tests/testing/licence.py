"""A correct plugin for the kit's own tests: one ConfigMap per pod, until its end or the rollback."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

from bowline import (
    Access,
    AccessRule,
    AdmissionInfo,
    AdmissionPlugin,
    BindContext,
    BindingPlugin,
    BindRequest,
    FieldError,
    MutablePod,
    Object,
    Status,
)
from bowline.errors import AlreadyExists, NotFound
from bowline.resources import CONFIGMAPS

SEATS = "licence.example.com/seats"


class Licence(AdmissionPlugin, BindingPlugin):
    """One ConfigMap for each pod."""

    name = "licence"
    access = Access(
        rules=(AccessRule("configmaps", ("create", "delete"), name_prefix="licence-"),), binding_annotations=(SEATS,)
    )

    def mutate_pod(self, pod: MutablePod, info: AdmissionInfo) -> None:
        pod.set_annotation(SEATS, "1")

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        return ()

    def has_side_effects(self, request: BindRequest, pod: Object | None) -> bool:
        return True

    async def pre_bind(self, ctx: BindContext) -> Status:
        key = ctx.request.key
        with suppress(AlreadyExists):
            await ctx.client.create(CONFIGMAPS, key.namespace, {"metadata": {"name": f"licence-{key.name}"}})
        return Status.ok(annotations={SEATS: "1"})

    async def release(self, ctx: BindContext) -> Status:
        key = ctx.request.key
        try:
            await ctx.client.delete(CONFIGMAPS, key.namespace, f"licence-{key.name}")
        except NotFound:
            return Status.ok()
        return Status.ok()


class Conditional(Licence):
    """Writes its progress into the ConfigMap, in the version that it has read."""

    name = "conditional"
    access = replace(Licence.access, rules=(AccessRule("configmaps", ("create", "get", "patch", "delete")),))

    async def pre_bind(self, ctx: BindContext) -> Status:
        status = await super().pre_bind(ctx)
        namespace, name = ctx.request.key.namespace, f"licence-{ctx.request.key.name}"
        stored = await ctx.client.get(CONFIGMAPS, namespace, name)
        for progress in ("requested", "granted"):
            metadata = {"resourceVersion": stored["metadata"]["resourceVersion"]}
            stored = await ctx.client.patch(
                CONFIGMAPS, namespace, name, {"metadata": metadata, "data": {"progress": progress}}
            )
        return status
