"""What only plugins that ship with Bowline do in the reconciler: no promise to the authors of others."""

from collections.abc import Collection, Mapping

from bowline.api.bindrequest import AllocationKind
from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.plugin import Args_co


class BuiltinBindingPlugin(BindingPlugin[Args_co]):
    """A plugin of the reconciler with the extension points that are not public.

    The objects of its context are no copies: they are the framework's, and read-only.
    """

    # The kinds of allocations that it provides. A request with a kind of no enabled plugin ends Failed/NoPlugin.
    allocations: Collection[AllocationKind] = ()

    def binding_annotations(self, ctx: BindContext) -> Mapping[str, str]:
        """Return annotations that depend on the pre_bind of other plugins; called after all of them."""
        return {}

    def on_failure(self, ctx: BindContext) -> None:
        """Drop what holds for the attempt only: pre_bind or bind of some plugin has failed."""

    def sizes(self) -> Mapping[str, int]:
        """Return the number of entries of what the plugin remembers of requests and objects, by its name. No I/O.

        For the debug page ``caches`` and the metric ``bowline_plugin_remembered``: what grows without end is a leak.
        Called at each read, from after setup on; the names are always the same ones.
        """
        return {}
