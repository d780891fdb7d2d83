"""The plugin interface: what every plugin has, and the methods that admission calls.

A plugin derives from ``AdmissionPlugin``, from ``BindingPlugin`` (module ``binding_plugin`` beside this one), or from
both. It implements one concern; retries, timeouts, status, events and metrics are the framework's. The admission
methods are synchronous, pure and bounded, and do no I/O. Every method except the constructor is optional; one that is
not overridden costs nothing, because extension points are lists of the plugins that override them.

Exceptions are counted and logged with the plugin's name. The changes of a mutate method that raises are undone and
the object continues; a validate method that raises denies the object.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, get_args

from pydantic import BaseModel, ConfigDict
from typing_extensions import TypeVar

from bowline.api.bindrequest import BindRequest
from bowline.api.field_error import FieldError
from bowline.api.gpu_operator import UNKNOWN, GpuRuntime
from bowline.api.meta import Object
from bowline.api.rule import Rule
from bowline.framework.config import Settings
from bowline.framework.interface.access import Access, as_value
from bowline.framework.interface.mutable import MutableObject, MutablePod


class PluginConfig(BaseModel):
    """Base of every plugin's ``args``: unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


@dataclass(frozen=True, slots=True)
class AdmissionInfo:
    """The admission request that the object is part of.

    - ``is_validating_webhook``: true in the validating hook of live objects, after all mutation, where a plugin also
      reports that its own mutation is missing; false for templates, offline lint and the mutating hook.
    - ``kind``: the submitted object's kind, which for a template is not Pod.
    - ``gpu_runtime``: what the webhook knows of the cluster. A denial may use it only where the API server denies the
      same: a RuntimeClass that does not exist.
    - ``is_partial``: the pod gets containers from elsewhere too, as a TrainJob's from its runtime; templates only.
    - ``request_uid``: unique per request; generated values are derived from it, so that the chain stays pure. Empty
      offline.
    - ``user``: the requesting user. Empty offline.
    """

    operation: Literal["CREATE", "UPDATE"] = "CREATE"
    namespace: str = ""
    kind: str = "Pod"
    is_validating_webhook: bool = False
    gpu_runtime: GpuRuntime = UNKNOWN
    is_partial: bool = False
    request_uid: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class AnnotationReads:
    """The annotations of pods that a plugin reads, and that have no effect while it is off.

    ``keys``: in full. ``affixes``: prefix and suffix of keys. ``remedy``: what to do while it is off.
    """

    plugin: str
    remedy: str
    keys: tuple[str, ...] = ()
    affixes: tuple[tuple[str, str], ...] = ()

    def covers(self, annotation: str) -> bool:
        """Return whether the plugin reads the annotation."""
        for prefix, suffix in self.affixes:
            if annotation.startswith(prefix) and annotation.endswith(suffix):
                return True
        return annotation in self.keys


# A plugin without arguments leaves it out.
Args_co = TypeVar("Args_co", bound=PluginConfig, default=PluginConfig, covariant=True)


class Plugin(Generic[Args_co]):
    """Base of ``AdmissionPlugin`` and ``BindingPlugin``; ``Args_co`` is the type of the plugin's arguments."""

    name: ClassVar[str]
    # ``Args_co``, set by ``__init_subclass__``.
    config_model: ClassVar[type[PluginConfig]] = PluginConfig
    # Plugins that must be enabled for this one; they also precede it in the order.
    requires: ClassVar[tuple[str, ...]] = ()
    # Plugins that, if enabled, must precede this one.
    after: ClassVar[tuple[str, ...]] = ()
    # Plugins that, if enabled, must follow this one.
    before: ClassVar[tuple[str, ...]] = ()
    # What it needs of the cluster; the chart renders rights, conditions of hooks and policies from it.
    access: ClassVar[Access] = Access()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        bases = vars(cls).get("__orig_bases__", ())
        models = {model for base in bases for model in get_args(base) if not isinstance(model, TypeVar)}
        if len(models) > 1:
            raise TypeError(f"{cls.__name__} has several type parameters; all kinds of a plugin have the same one")
        if models:
            cls.config_model = models.pop()

    def __init__(self, args: Args_co, settings: Settings) -> None:
        """Keep the arguments and the settings shared by several plugins.

        Called in both processes and by `bowline lint`. An exception is reported as a configuration error.
        """
        self.args = args
        self.settings = settings

    def has_side_effects(self, request: BindRequest, pod: Object | None) -> bool:
        """Return whether pre_bind may write anything that only rollback removes. Must change neither argument.

        If any plugin returns True, or raises, the request gets Bowline's finalizer, with the plugin's name, before
        the first attempt: in the webhook without a further write, in the reconciler by one. Not overridden: each
        request to which a plugin with ``rollback`` applies. Override it if fewer have side effects, or if the request
        alone decides. ``pod`` is None in the webhook; the reconciler asks with the pod before every attempt.
        """
        return False


class AdmissionPlugin(Plugin[Args_co]):
    """A plugin of the webhook and of `bowline lint`. Set ``name`` and ``rules``, override the methods you need.

    The methods yield or return FieldErrors, each with one of the plugin's rules. ``info`` describes the admission
    request. They must not modify their arguments except the Mutable ones.
    """

    # The rules that the plugin applies; their ids begin with its name.
    rules: ClassVar[tuple[Rule, ...]] = ()

    def mutate_pod(self, pod: MutablePod, info: AdmissionInfo) -> None:
        """Mutate a pod on CREATE, before it is stored. May be called again with its own result: be idempotent."""

    def validate_pod(self, pod: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        """Return all errors, with paths relative to the pod.

        ``old`` is the stored pod on UPDATE, else None. Validate only the changes then: a pod that violates a rule
        added since must stay updatable.
        """
        return ()

    def mutate_ephemeral_containers(self, pod: MutablePod, old: Object, info: AdmissionInfo) -> None:
        """Mutate the ephemeral containers that are not in ``old``; the others are running. Must be idempotent."""

    def validate_ephemeral_containers(self, pod: Object, old: Object, info: AdmissionInfo) -> Iterable[FieldError]:
        """Return all errors of the ephemeral containers that are not in ``old``, paths relative to the pod."""
        return ()

    def mutate_bind_request(self, request: MutableObject, info: AdmissionInfo) -> None:
        """Mutate a BindRequest before it is stored; must be idempotent."""

    def validate_bind_request(self, request: Object, old: Object | None, info: AdmissionInfo) -> Iterable[FieldError]:
        """Return all errors that the CRD's schema cannot express."""
        return ()


P = TypeVar("P", bound=Plugin)


def overriding(plugins: Iterable[P], method: Callable[..., Any]) -> tuple[P, ...]:
    """Return the plugins whose class overrides a method of the interface."""
    return tuple(plugin for plugin in plugins if getattr(type(plugin), method.__name__, method) is not method)


# What a plugin's admission methods review, by the name of the webhook's hook.
_HOOKS: Mapping[str, tuple[str, ...]] = {
    "pods": ("mutate_pod", "validate_pod"),
    "ephemeralcontainers": ("mutate_ephemeral_containers", "validate_ephemeral_containers"),
    "bindrequests": ("mutate_bind_request", "validate_bind_request"),
}


def hooks_of(plugin: type[Plugin]) -> list[str]:
    """Return the hooks whose admission methods the plugin overrides."""
    interface = vars(AdmissionPlugin)
    return [
        hook
        for hook, methods in _HOOKS.items()
        if any(getattr(plugin, method, None) not in (None, interface[method]) for method in methods)
    ]


def access_value(plugin: type[Plugin], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the access of a plugin with these arguments as an entry of the chart's value ``pluginAccess``."""
    hooks = hooks_of(plugin)
    entry: dict[str, Any] = {"plugin": plugin.name, "hooks": hooks} if hooks else {"plugin": plugin.name}
    return {**entry, **as_value(plugin.access, arguments)}
