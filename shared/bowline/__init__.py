"""Bowline's package: what the author of a plugin imports, and below it everything that the wheel installs.

    from bowline import BindingPlugin, BindContext, Status

Stable are the names in ``__all__`` of this module, ``bowline.errors``, ``bowline.resources`` and ``bowline.testing``:
a name or an argument is removed at the earliest two minor versions after the changelog deprecates it. Other modules
may change in any version. The interface is loaded at its first use, so that importing another module does not load
the framework.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bowline.plugin import *  # noqa: F403
    from bowline.plugin import __all__ as __all__

_INTERFACE = "bowline.plugin"


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return import_module(_INTERFACE).__all__
    if not name.startswith("_") and name in (interface := import_module(_INTERFACE)).__all__:
        return getattr(interface, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *import_module(_INTERFACE).__all__]
