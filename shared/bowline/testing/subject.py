"""The plugin under test: its class, arguments, and the objects with which the checks call it. Values only."""

import importlib
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from bowline.framework.config import Settings
from bowline.framework.interface.plugin import Plugin
from bowline.framework.plugin_order import sorted_stably
from bowline.kube.object_client import ObjectClient
from bowline.kube.resources import Resource
from bowline.plugins.catalog import BUILTINS
from bowline.testing import builders


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """One plugin, and what its checks need. Each is equal to itself only.

    - ``args``: the plugin's arguments, as in the configuration.
    - ``pods``: raw pods that concern the plugin; the first one is bound.
    - ``objects``: what must exist before an attempt; an object without a namespace gets the attempt's own.
    - ``request``: fields of the BindRequest's spec.
    - ``others``: the other plugins of the same attempts, with their default arguments, such as the one whose results
      the plugin uses. What they do is part of what is compared.
    - ``world``: plays the other party while the plugin's process runs, such as the controller that makes an object
      ready that the plugin waits for. It is called once for each process, with a client with every right and the
      attempt's namespace, before the first attempt; it repeats until it is cancelled, when the process ends.
    - ``effects``: returns what the plugin has outside of the API server, one text each, such as the seats of a
      licence server; compared as the objects are.
    - ``outage``: a context manager in which what is outside does not answer.
    - ``denied``: raw pods that the plugin's rules deny.
    - ``limit_s``: how long an attempt may take; raise it for a plugin that waits on purpose.

    ``{namespace}`` in the strings of ``objects`` and ``request`` is the attempt's namespace: what is outside of it
    needs a name that differs between attempts.
    """

    plugin: type[Plugin]
    args: Mapping[str, Any] = field(default_factory=dict)
    pods: Sequence[dict[str, Any]] = ()
    objects: Sequence[tuple[Resource, Mapping[str, Any]]] = ()
    request: Mapping[str, Any] = field(default_factory=dict)
    limit_s: float = 10.0
    others: Sequence[type[Plugin]] = ()
    world: Callable[[ObjectClient, str], Awaitable[None]] | None = None
    effects: Callable[[], Iterable[str]] = tuple
    outage: Callable[[], AbstractContextManager[object]] | None = None
    denied: Sequence[dict[str, Any]] = ()

    def new(self) -> Plugin:
        """Return a new instance, as a process creates it."""
        return self.plugin(self.plugin.config_model(**self.args), Settings())

    def chain(self) -> tuple[Plugin, Sequence[Plugin]]:
        """Return a new instance of the plugin, and that with the others in the order in which they run."""
        plugin = self.new()
        order = sorted_stably([*self.others, self.plugin])
        return plugin, [plugin if kind is self.plugin else kind(kind.config_model(), Settings()) for kind in order]

    def objects_in(self, namespace: str) -> list[tuple[Resource, dict[str, Any]]]:
        """Return the objects of an attempt in this namespace."""
        objects = []
        for resource, body in self.objects:
            raw = _in_namespace(body, namespace)
            if resource.namespaced:
                raw["metadata"] = {"namespace": namespace, **raw["metadata"]}
            objects.append((resource, raw))
        return objects

    def request_in(self, namespace: str) -> dict[str, Any]:
        """Return the fields of the request of an attempt in this namespace."""
        return _in_namespace(self.request, namespace)

    def samples(self) -> Sequence[dict[str, Any]]:
        """Return the pods; without any, a pod that requests a GPU."""
        return self.pods or (builders.pod(containers=[_GPU_CONTAINER]),)

    @property
    def is_builtin(self) -> bool:
        """Whether the plugin ships with Bowline."""
        return any(builtin.plugin is self.plugin for builtin in BUILTINS)

    @property
    def files(self) -> frozenset[str]:
        """The source files of the plugin's classes, without Bowline's interface."""
        modules = {kind.__module__ for kind in self.plugin.__mro__ if issubclass(kind, Plugin)}
        own = {name for name in modules if not name.startswith("bowline.framework.")}
        return frozenset(inspect.getfile(importlib.import_module(name)) for name in own)


def _in_namespace(raw: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """Return a copy with the namespace in the place of its placeholder."""
    body: dict[str, Any] = json.loads(json.dumps(raw).replace(_NAMESPACE, namespace))
    return body


_NAMESPACE = "{namespace}"
_GPU_CONTAINER = {
    "name": "main",
    "image": "registry.example/app:1",
    "resources": {"limits": {"nvidia.com/gpu": "1"}},
}
