"""Attempts of a plugin for its tests, on a real API server: the fixtures ``bind_context`` and ``run_attempt``.

Both accept the fields of ``Subject``: ``args``, ``pods``, ``objects``, ``request``, ``limit_s``. Each use has a
namespace, a pod and a BindRequest of its own, and a new instance of the plugin after ``setup`` and ``start``.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bowline.framework.interface.binding_plugin import BindingPlugin
from bowline.framework.interface.context import BindContext
from bowline.framework.interface.status import Status
from bowline.kube.object_client import ObjectClient
from bowline.testing.lab import Lab, LabProcess, trial
from bowline.testing.subject import Subject

__all__ = ["Attempts", "BindContexts", "TestedAttempt"]

PluginT = TypeVar("PluginT", bound="BindingPlugin[Any]")


@dataclass(frozen=True, slots=True)
class TestedAttempt(Generic[PluginT]):
    """An attempt that has ended, and what the API server stores then.

    - ``status``: the result of pre_bind and bind; OK if the pod is bound.
    - ``errors``: exceptions of the plugin, each as ``point: type: message``.
    - ``pod``, ``request``: as stored after the attempt; ``client`` reads anything else, with every right.
    - ``process``: runs further attempts and rollbacks.
    """

    status: Status
    errors: tuple[str, ...]
    plugin: PluginT
    pod: dict[str, Any]
    request: dict[str, Any]
    client: ObjectClient
    process: LabProcess

    @property
    def namespace(self) -> str:
        """The namespace of the pod and its request."""
        return str(self.pod["metadata"]["namespace"])

    async def roll_back(self) -> Status:
        """Abandon the request: call rollback until it succeeds; return the last status."""
        return await self.process.roll_back()


@dataclass(frozen=True, slots=True)
class BindContexts:
    """The fixture ``bind_context``: ``async with bind_context(Licence) as (plugin, ctx)``."""

    _lab: Lab

    @asynccontextmanager
    async def __call__(self, plugin: type[PluginT], **subject: Any) -> AsyncIterator[tuple[PluginT, BindContext]]:
        """Yield a started plugin, and the context with which its methods are called in the first attempt."""
        async with trial(self._lab, Subject(plugin, **subject)) as made, made.process() as process:
            assert isinstance(process.plugin, plugin)  # noqa: S101 - the subject's class
            yield process.plugin, await made.context(process)


@dataclass(frozen=True, slots=True)
class Attempts:
    """The fixture ``run_attempt``: ``async with run_attempt(Licence) as attempt``."""

    _lab: Lab

    @asynccontextmanager
    async def __call__(self, plugin: type[PluginT], **subject: Any) -> AsyncIterator[TestedAttempt[PluginT]]:
        """Run pre_bind, bind and post_bind, beside Bowline's default binder; yield the result. The pod ends with
        the block.
        """
        async with trial(self._lab, Subject(plugin, **subject)) as made, made.process() as process:
            assert isinstance(process.plugin, plugin)  # noqa: S101 - the subject's class
            status = await process.attempt()
            pod, request = await made.stored()
            errors = tuple(process.calls.errors)
            yield TestedAttempt(status, errors, process.plugin, pod, request, made.admin, process)
