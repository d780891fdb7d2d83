"""A plugin that records its calls and returns configured results.

For tests of the order of calls, and of the consequences of a failure at one extension point.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from bowline.api.bindrequest import AllocationKind, BindRequest
from bowline.api.meta import Object, ObjectKey
from bowline.framework.config import Settings
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.handle import Handle
from bowline.framework.interface.plugin import AdmissionPlugin, PluginConfig
from bowline.framework.interface.status import Status

T = TypeVar("T")
# The calls in order, as "plugin.point".
Calls = list[str]
# By extension point: what to return or raise instead of the default.
Answers = Mapping[str, Callable[[], Any]]


class RecordingPlugin(AdmissionPlugin, BuiltinBindingPlugin):
    """Records every call in a shared list. ``answers`` maps an extension point to its behaviour."""

    name = "recording"
    allocations = tuple(AllocationKind)

    def __init__(self, name: str, calls: Calls, answers: Answers | None = None, effects: bool = False) -> None:
        super().__init__(PluginConfig(), Settings())
        # Several instances run together, each under its own name.
        self.name = name  # type: ignore[misc]  # a class variable everywhere else
        self._calls = calls
        self._answers = answers or {}
        self._effects = effects

    def _record(self, point: str, default: T) -> T:
        self._calls.append(f"{self.name}.{point}")
        answer = self._answers.get(point)
        return answer() if answer is not None else default

    def has_side_effects(self, request: BindRequest, pod: Object | None) -> bool:
        return self._effects

    async def setup(self, handle: Handle) -> None:
        self._record("setup", None)

    async def run(self) -> None:
        self._record("run", None)
        try:
            await asyncio.Event().wait()
        finally:
            self._record("end", None)

    def applies(self, pod: Object, request: BindRequest) -> bool:
        answer = self._answers.get("applies")  # asked before every attempt, so it is not recorded
        return answer() if answer is not None else True

    async def pre_bind(self, ctx: BindContext) -> Status:
        return self._record("pre_bind", Status.ok())

    def binding_annotations(self, ctx: BindContext) -> Mapping[str, str]:
        return self._record("binding_annotations", {})

    async def bind(self, ctx: BindContext) -> Status:
        return self._record("bind", Status.skip())

    async def post_bind(self, ctx: BindContext) -> None:
        self._record("post_bind", None)

    async def rollback(self, ctx: BindContext, why: Status) -> Status:
        return self._record("rollback", Status.ok())

    async def release(self, ctx: BindContext) -> Status:
        return self._record("release", Status.ok())

    async def forget(self, key: ObjectKey) -> None:
        self._record("forget", None)

    def on_failure(self, ctx: BindContext) -> None:
        return self._record("on_failure", None)
