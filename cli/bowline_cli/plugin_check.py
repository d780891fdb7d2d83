"""``bowline plugin check``: conformance of a plugin, on a real API server that the command starts."""

import argparse
import sys
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import yaml

from bowline.framework.registry import installed_plugins
from bowline.localcluster.errors import LocalClusterError
from bowline.plugins.catalog import BUILTINS
from bowline.testing import conformance
from bowline.testing.servers import bare_api_server
from bowline_cli.terminal import printable

EXIT_FINDINGS, EXIT_USAGE = 1, 2
SAMPLES_GROUP = "bowline.conformance"


class TargetError(Exception):
    """There is no such plugin; the message says where it was looked for."""


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


def run(options: argparse.Namespace) -> int:
    """Run the checks; return the exit status."""
    try:
        with ExitStack() as stack:
            subject = dict(samples(options.plugin))
            if options.pods:
                subject["pods"] = pods(options.pods)
            if options.args or "args" not in subject:
                subject["args"] = options.args
            subject.setdefault("limit_s", options.limit)
            cluster = None if options.no_cluster else stack.enter_context(bare_api_server())
            findings = list(conformance.run(target(options.plugin), cluster, **subject))
    except (TargetError, LocalClusterError) as error:
        sys.stderr.write(f"bowline plugin check: {printable(str(error))}\n")
        return EXIT_USAGE
    for finding in findings:
        sys.stdout.write(f"{printable(str(finding))}\n")
    sys.stdout.write(f"{options.plugin}: {len(findings) or 'no'} finding{'' if len(findings) == 1 else 's'}\n")
    return EXIT_FINDINGS if findings else 0
