"""A plugin that fails the first attempts of pods that ask for it, to see what retrying looks like.

Turn it on in the configuration::

    plugins:
      - name: example_flaky
        args: {annotation: example.bowline.dev/fail-attempts}
"""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from bowline import BindContext, BindingPlugin, BindRequest, Handle, Object, PluginConfig, Status


class FlakyConfig(PluginConfig):
    """Arguments of the plugin."""

    annotation: Annotated[str, Field(min_length=1)] = "example.bowline.dev/fail-attempts"
    """Annotation of the pod: how many attempts must fail."""


class Flaky(BindingPlugin[FlakyConfig]):
    """Fails as often as the pod's annotation requires, then binds."""

    name = "example_flaky"

    async def setup(self, handle: Handle) -> None:
        """Count what only this plugin knows; the framework counts its calls and their answers."""
        self._failures = handle.metrics.counter("failures_total", "Attempts that were failed on purpose.")

    def applies(self, pod: Object, request: BindRequest) -> bool:
        """Only pods with the annotation are slowed down by this plugin."""
        return bool(self._failures_wanted(pod))

    async def pre_bind(self, ctx: BindContext) -> Status:
        """Fail while the attempt's number is not above the wanted failures."""
        wanted = self._failures_wanted(ctx.pod)
        if ctx.attempt <= wanted:
            self._failures.inc()
            return Status.retry(f"failing on purpose, {wanted - ctx.attempt} more will follow")
        return Status.ok()

    def _failures_wanted(self, pod: Object | None) -> int:
        annotations: Mapping[str, str] = (pod or {"metadata": {}})["metadata"].get("annotations") or {}
        text = annotations.get(self.args.annotation, "")
        return int(text) if text.isascii() and text.isdigit() else 0
