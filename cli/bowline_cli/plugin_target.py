"""The plugin that a command is about: by the name of its entry point, or as ``module:Class``."""

import argparse
import json
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml

from bowline.framework.registry import installed_plugins
from bowline.plugins.catalog import BUILTINS

SAMPLES_GROUP = "bowline.conformance"


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


def samples(text: str) -> Mapping[str, Any]:
    """Return what the plugin's distribution states for its conformance: keywords of ``conformance.suite``.

    Empty if it has no entry point of that name in the group ``bowline.conformance``. Raises TargetError.
    """
    for point in entry_points(group=SAMPLES_GROUP, name=text):
        try:
            keywords = point.load()
        except Exception as error:
            raise TargetError(f"{point.value} cannot be loaded: {type(error).__name__}: {error}") from error
        if not isinstance(keywords, Mapping):
            raise TargetError(f"{point.value} is no mapping of keywords of bowline.testing.conformance.suite")
        return keywords
    return {}


def pods(paths: Iterable[Path]) -> list[dict[str, Any]]:
    """Return the pods of the files. Raises TargetError."""
    bodies: list[dict[str, Any]] = []
    for path in paths:
        try:
            documents = [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]
        except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
            raise TargetError(f"{path} cannot be read: {error}") from error
        if any(not isinstance(document, dict) or document.get("kind") != "Pod" for document in documents):
            raise TargetError(f"{path} has something else than pods")
        if not all(map(_is_complete, documents)):
            raise TargetError(f"{path} has a pod without metadata.name, or without a container with name and image")
        bodies += documents
    return bodies


def _is_complete(pod: Mapping[str, Any]) -> bool:
    """Return whether an API server would have the fields that every pod needs."""
    metadata, spec = pod.get("metadata"), pod.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    return (
        isinstance(metadata, dict)
        and isinstance(metadata.get("name"), str)
        and isinstance(containers, list)
        and bool(containers)
        and all(
            isinstance(container, dict) and isinstance(container.get(field), str)
            for container in containers
            for field in ("name", "image")
        )
    )


def _object(text: str) -> Mapping[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("must be a JSON object")
    return value
