"""Which methods a plugin's class may define: errors at start instead of a hook that is never called.

A misspelt hook is an ordinary method to Python, and the framework would call the base class's instead: a pod would be
bound unprepared. So a plugin's class may define only hooks, and names that begin with an underscore. Pure.
"""

import inspect
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from shared.framework.plugin import Plugin

HOOKS = frozenset(name for name, member in vars(Plugin).items() if inspect.isfunction(member) and name[0] != "_")


def interface_errors(plugin_class: type[Plugin]) -> list[str]:
    """Return what is wrong with the methods of a plugin's class, each with its remedy; empty if nothing is."""
    return [*_unknown_methods(plugin_class), *_wrong_hooks(plugin_class), *_missing_hooks(plugin_class)]


def _unknown_methods(plugin_class: type[Plugin]) -> Iterator[str]:
    for name in dir(plugin_class):
        if name.startswith("_") or name in HOOKS or not callable(getattr(plugin_class, name)):
            continue
        if hasattr(Plugin, name) or not _is_method(inspect.getattr_static(plugin_class, name)):
            continue
        hooks = get_close_matches(name, HOOKS, n=1, cutoff=0.7)
        advice = f"did you mean `{hooks[0]}`? Otherwise" if hooks else "if it is a helper,"
        yield f"its method `{name}` is no hook and is never called; {advice} begin its name with an underscore"


def _wrong_hooks(plugin_class: type[Plugin]) -> Iterator[str]:
    for name in sorted(HOOKS):
        method, hook = getattr(plugin_class, name), getattr(Plugin, name)
        if method is hook:
            continue
        if not callable(method):
            yield f"its attribute `{name}` has the name of a hook, and is no method; rename it"
            continue
        if inspect.iscoroutinefunction(hook) and not inspect.iscoroutinefunction(method):
            yield f"its method `{name}` must be asynchronous; declare it with `async def`"
        elif inspect.iscoroutinefunction(method) and not inspect.iscoroutinefunction(hook):
            yield f"its method `{name}` must not be asynchronous; declare it with `def`"
        if not _accepts(plugin_class, name):
            parameters = ", ".join(inspect.signature(hook).parameters)
            yield f"its method `{name}` does not accept the hook's arguments; declare it as {name}({parameters})"


def _missing_hooks(plugin_class: type[Plugin]) -> Iterator[str]:
    if plugin_class.rollback is not Plugin.rollback and plugin_class.has_side_effects is Plugin.has_side_effects:
        yield (
            "its method `rollback` may never be called, because no side effects are declared; define "
            "`has_side_effects`, and return True for the requests that `pre_bind` writes something for"
        )


def _is_method(member: Any) -> bool:
    return inspect.isfunction(member) or isinstance(member, staticmethod | classmethod)


def _accepts(plugin_class: type[Plugin], name: str) -> bool:
    """Return whether the method, called on an instance, accepts as many positional arguments as the hook."""
    member = inspect.getattr_static(plugin_class, name)
    method = getattr(plugin_class, name)
    is_bound = isinstance(member, staticmethod | classmethod)
    arguments = list(inspect.signature(getattr(Plugin, name)).parameters)[1 if is_bound else 0 :]
    try:
        inspect.signature(method).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a callable of another language, whose signature is unknown
        return True
    return True
