"""The plugin that a command is about: by the name of its entry point, or as ``module:Class``."""

import argparse
import importlib
import json
from collections.abc import Mapping
from typing import Any

from bowline.framework.plugin import Plugin
from bowline.framework.registry import installed_plugins
from bowline.plugins.catalog import BUILTINS


class TargetError(Exception):
    """There is no such plugin; the message says where it was looked for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the arguments that name a plugin and its arguments."""
    parser.add_argument("plugin", help="the name of an installed or built-in plugin, or module:Class")
    parser.add_argument(
        "--args", type=_object, default={}, metavar="JSON", help="the plugin's arguments, as in the configuration"
    )


def target(text: str) -> str:
    """Return the ``module:Class`` of the text."""
    if ":" in text:
        return text
    for point in installed_plugins():
        if point.name == text:
            return point.value
    for builtin in BUILTINS:
        if builtin.plugin.name == text:
            return f"{builtin.plugin.__module__}:{builtin.plugin.__qualname__}"
    names = ", ".join(sorted({point.name for point in installed_plugins()})) or "none"
    raise TargetError(f"no installed plugin is named {text!r} (installed: {names}); install it, or name module:Class")


def loaded(text: str) -> type[Plugin]:
    """Return the class of the plugin."""
    module, _, name = target(text).partition(":")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ImportError as error:
        raise TargetError(f"{module} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Plugin)):
        raise TargetError(f"{text} is not a subclass of AdmissionPlugin or BindingPlugin")
    return found


def _object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value
