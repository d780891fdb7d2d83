"""The bind plugin of last resort: binds the pod to its node with a Binding that carries the annotations.

Serves every request that needs no device prepared: CPU pods, whole GPUs and MIG devices, which the kubelet's device
plugin assigns. It never skips, so it runs last.
"""

from collections.abc import Mapping

from bowline.api.bindrequest import AllocationKind, ResourceType
from bowline.api.names import RECEIVED_RESOURCE_TYPE
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.plugin import Access, BindContext, Status, bind_by_post


class DefaultBinder(BuiltinBindingPlugin):
    """Posts the Binding."""

    name = "default_binder"
    access = Access(binding_annotations=(RECEIVED_RESOURCE_TYPE,))
    # Those that need only the Binding.
    allocations = (AllocationKind.REGULAR, AllocationKind.MIG)

    def binding_annotations(self, ctx: BindContext) -> Mapping[str, str]:
        """Return the annotation that records which resource type the pod received."""
        return {RECEIVED_RESOURCE_TYPE: str(ctx.spec.received_resource_type or ResourceType.REGULAR)}

    async def bind(self, ctx: BindContext) -> Status:
        """Post the Binding with the pod's UID, so that another pod of the same name is never bound."""
        return await bind_by_post(ctx)
