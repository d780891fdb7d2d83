"""A bind of its own: looks at the node once more, labels the pod with its rack, and then posts the Binding."""

from collections.abc import Mapping

from bowline import Access, BindContext, BindingPlugin, Status, Suggestion, bind_by_post
from bowline.resources import NODES

RACK = "example.com/rack"


class LateCheck(BindingPlugin):
    """Binds every pod, unless its node was cordoned after the scheduler's decision."""

    name = "example_late_check"
    access = Access(binding_labels=(RACK,))

    async def pre_bind(self, ctx: BindContext) -> Status:
        # ctx.node has the GPU labels only.
        node = await ctx.client.get(NODES, "", ctx.spec.selected_node)
        labels: Mapping[str, str] = node["metadata"].get("labels") or {}
        return Status.ok(labels={RACK: labels[RACK]} if RACK in labels else None)

    async def bind(self, ctx: BindContext) -> Status:
        node = await ctx.client.get(NODES, "", ctx.spec.selected_node)
        if node["spec"].get("unschedulable"):
            why = f"node {ctx.spec.selected_node} was cordoned after the decision"
            return Status.fatal(why, "NodeCordoned", Suggestion.RESCHEDULE_ELSEWHERE)
        return await bind_by_post(ctx)
