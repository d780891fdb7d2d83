"""Errors in a plugin's class, found at start instead of at the call.

Each of them would otherwise appear when a pod is bound: a misspelt method is one that is never called, and its pod
would be bound unprepared. So every public method that is no extension point is an error, whether it resembles one or
not, and a helper's name begins with an underscore.
"""

import inspect
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any, Final

from bowline.api.field_error import FieldError
from bowline.api.rule import Rule
from bowline.framework.interface.access import Access, access_errors
from bowline.framework.interface.binding_plugin import BindingPlugin, Budgets
from bowline.framework.interface.builtin import BuiltinBindingPlugin
from bowline.framework.interface.plugin import AdmissionPlugin, Plugin, PluginConfig

PLUGIN: Final = Rule(
    "config/plugin", "a plugin is unknown, listed twice, cannot be loaded or created, or its class is invalid"
)
ACCESS: Final = Rule("plugin/access", "what a plugin declares that it needs of the cluster cannot be granted")
_UNKNOWN_METHOD: Final = Rule("plugin/unknown-method", "a public method of a plugin is none of the interface")
_KIND: Final = Rule(
    "plugin/kind", "a method of a plugin belongs to a kind of plugin that its class does not derive from"
)
_METHOD: Final = Rule(
    "plugin/method", "an attribute of a plugin has the name of a method of the interface and is none"
)
_ASYNC: Final = Rule(
    "plugin/async", "a method of a plugin is asynchronous where the interface's is not, or the reverse"
)
_ARGUMENTS: Final = Rule("plugin/arguments", "a method of a plugin cannot be called with the interface's arguments")
RULES: Final = (PLUGIN, ACCESS, _UNKNOWN_METHOD, _KIND, _METHOD, _ASYNC, _ARGUMENTS)


def _methods(*kinds: type) -> dict[str, Callable[..., Any]]:
    members = [item for kind in kinds for item in vars(kind).items()]
    return {name: member for name, member in members if inspect.isfunction(member) and not name.startswith("_")}


# The methods of the interface; for plugins that ship with Bowline also those that are not public.
POINTS = _methods(Plugin, AdmissionPlugin, BindingPlugin)
_BUILTIN_POINTS = POINTS | _methods(BuiltinBindingPlugin)


def _is_tuple_of(kind: type) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and all(isinstance(item, kind) for item in value)


# Required types of a plugin's class attributes.
_ATTRIBUTES: tuple[tuple[str, str, Callable[[Any], bool]], ...] = (
    *((name, "a tuple of names", _is_tuple_of(str)) for name in ("requires", "after", "before")),
    ("rules", "a tuple of Rule", _is_tuple_of(Rule)),
    ("access", "an Access", lambda value: isinstance(value, Access)),
    ("budgets", "a Budgets", lambda value: isinstance(value, Budgets)),
    ("parallel", "True or False", lambda value: isinstance(value, bool)),
    (
        "config_model",
        "a subclass of PluginConfig",
        lambda value: isinstance(value, type) and issubclass(value, PluginConfig),
    ),
)


def class_errors(candidate: Any, name: str, path: str) -> list[FieldError]:
    """Return why a class cannot be the plugin of that name. ``path`` is that of its name in the configuration."""
    if (
        not (isinstance(candidate, type) and issubclass(candidate, AdmissionPlugin | BindingPlugin))
        or getattr(candidate, "name", None) != name
    ):
        message = (
            "its entry point must name a subclass of AdmissionPlugin or BindingPlugin with a class attribute `name` "
            "that is the same"
        )
        return [FieldError(PLUGIN, path, name, message)]
    errors = []
    for attribute, expected, is_right in _ATTRIBUTES:
        value = getattr(candidate, attribute, None)
        if hasattr(candidate, attribute) and not is_right(value):
            message = f"its class attribute `{attribute}` must be {expected}, not {value!r}"
            errors.append(FieldError(PLUGIN, path, name, message))
    if not errors:
        for rule in getattr(candidate, "rules", ()):
            if rule.id.partition("/")[0] != name:
                message = f'the id of its rule {rule.id} must begin with "{name}/"'
                errors.append(FieldError(PLUGIN, path, name, message))
        arguments = candidate.config_model.model_fields
        for message in access_errors(candidate.access, arguments):
            errors.append(FieldError(ACCESS, path, f"{name}.access", message))
    for method in dir(candidate):
        if not method.startswith("_"):
            errors += [
                FieldError(rule, path, f"{name}.{method}", message)
                for rule, message in _method_errors(candidate, method)
            ]
    return errors


def _method_errors(candidate: type[Plugin], method: str) -> Iterator[tuple[Rule, str]]:
    """Yield rule and message of the errors of a public attribute."""
    points = _BUILTIN_POINTS if issubclass(candidate, BuiltinBindingPlugin) else POINTS
    member, point = getattr(candidate, method, None), points.get(method)
    if point is None:
        if callable(member) and not isinstance(member, type):
            nearest = POINTS[get_close_matches(method, POINTS, n=1, cutoff=0)[0]].__qualname__
            message = f"is never called: no extension point has this name, the nearest is {nearest}; correct the "
            yield _UNKNOWN_METHOD, f"{message}name, or begin a helper's with _"
    elif member is not point and not any(vars(kind).get(method) is point for kind in candidate.__mro__):
        kind = point.__qualname__.partition(".")[0]
        yield _KIND, f"is never called: it is an extension point of {kind}; derive the class from {kind} too"
    elif not callable(member):
        yield _METHOD, f"must be a method, not {member!r}; declare it with `{_declaration(point)}`"
    elif member is not point:
        yield from _call_errors(candidate, method, point)


def _call_errors(candidate: type[Plugin], method: str, point: Callable[..., Any]) -> Iterator[tuple[Rule, str]]:
    member = getattr(candidate, method)
    is_async = inspect.iscoroutinefunction(point)
    if inspect.iscoroutinefunction(member) is not is_async or inspect.isasyncgenfunction(member):
        problem = "must be asynchronous" if is_async else "must not be asynchronous"
        yield _ASYNC, f"{problem}; declare it with `{_declaration(point)}`"
    arguments = list(inspect.signature(point).parameters)
    if not inspect.isfunction(inspect.getattr_static(candidate, method)):
        del arguments[0]  # a static or class method receives no self
    try:
        inspect.signature(member).bind(*arguments)
    except (TypeError, ValueError) as error:
        yield _ARGUMENTS, f"cannot be called ({error}); declare it with `{_declaration(point)}`"


def _declaration(point: Callable[..., Any]) -> str:
    arguments = ", ".join(inspect.signature(point).parameters)
    return f"{'async ' if inspect.iscoroutinefunction(point) else ''}def {point.__name__}({arguments})"
