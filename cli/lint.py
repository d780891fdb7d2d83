"""``bowline lint``: the webhook's verdict on manifests, without a cluster.

It runs the webhook's admission chain over the same objects, so an error has the same rule, path and message in both.
Not checked is what requires a cluster: whether referenced objects exist, which namespaces are excluded, other
policies.
"""

import argparse
import copy
import json
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

from cli.manifests import STANDARD_INPUT, Manifest, UnreadableError, read_manifests
from shared.api import names
from shared.api.field_error import FieldError
from shared.api.meta import Object
from shared.framework.admission import ALLOWED, AdmissionChain, Verdict
from shared.framework.config import ConfigurationError, Settings, WorkloadEntry, load_settings
from shared.framework.gates import GATES
from shared.framework.plugin import AdmissionInfo
from shared.framework.registry import Registry
from shared.framework.workloads import READY, resolve_workloads
from shared.plugins.catalog import BUILTINS
from webhook.review import display_name
from webhook.workloads import review_workload

EXIT_ALLOWED, EXIT_REFUSED, EXIT_USAGE = 0, 1, 2


@dataclass(frozen=True, slots=True)
class LintResult:
    """The verdict on one object. ``is_reviewed`` is false for kinds that Bowline does not check."""

    file: str
    kind: str
    namespace: str
    name: str
    is_reviewed: bool
    verdict: Verdict
    submitted: Object


def add_command(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register the command with argparse."""
    parser = commands.add_parser(
        "lint",
        help="review manifests as the cluster's webhook would",
        description="Review pods, workloads and BindRequests in manifests as the cluster's webhook would. "
        "Exit status: 0 all allowed, 1 something denied, 2 bad usage.",
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help=f"YAML or JSON; {STANDARD_INPUT} is standard input")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text", help="(%(default)s)")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the cluster's Bowline configuration; without it the defaults"
    )
    parser.add_argument(
        "--show-changes",
        action="store_true",
        help="show what admission would change in allowed objects; generated names differ from the cluster's",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    try:
        settings = with_ready_kinds(load_settings(options.config))
        plugins = Registry(BUILTINS, GATES).build(settings)
    except ConfigurationError as error:
        print(f"the configuration cannot be used:\n{error}", file=sys.stderr)
        return EXIT_USAGE
    manifests, unreadable = _read_all(options.files)
    if unreadable:
        for message in unreadable:
            print(printable(message), file=sys.stderr)
        return EXIT_USAGE
    chain = AdmissionChain(plugins, settings, on_error=_report_plugin_error)
    results = [review_manifest(chain, manifest) for manifest in manifests]
    print(as_json(results) if options.output == "json" else as_text(results, shows_changes=options.show_changes))
    return EXIT_ALLOWED if all(result.verdict.allowed for result in results) else EXIT_REFUSED


def with_ready_kinds(settings: Settings) -> Settings:
    """Return settings with every kind that Bowline knows by name, also those that the configuration does not list.

    A cluster that does not check such a kind stores the object and denies its pods; lint reports the error earlier.
    """
    kinds, _ = resolve_workloads(settings.workloads)
    entries = (WorkloadEntry(kind=ready.kind, group=ready.group) for ready in READY if ready.key not in kinds)
    return settings.model_copy(update={"workloads": (*settings.workloads, *entries)})


def review_manifest(chain: AdmissionChain, manifest: Manifest) -> LintResult:
    """Check one object as on CREATE. Modifies ``manifest.object`` in place."""
    raw, kind, group = manifest.object, manifest.kind, manifest.group
    submitted = copy.deepcopy(raw)
    metadata = raw.get("metadata")
    namespace = metadata.get("namespace") if isinstance(metadata, dict) else ""
    info = AdmissionInfo(kind=kind, namespace=namespace if isinstance(namespace, str) else "")
    name, is_reviewed = display_name(raw), True
    if (group, kind) == ("", "Pod"):
        verdict = chain.admit_pod(raw, info)
    elif (group, kind) == (names.GROUP, names.KIND):
        verdict = chain.admit_bind_request(raw, info)
    elif (group, kind) in chain.workloads:
        verdict = review_workload(chain, chain.workloads[group, kind], raw, None, info)
    else:
        verdict, is_reviewed = ALLOWED, False
    return LintResult(manifest.file, kind, info.namespace, name, is_reviewed, verdict, submitted)


def as_json(results: Iterable[LintResult]) -> str:
    """Return the results as JSON; its keys are a stable interface."""
    document = [
        {
            "file": result.file,
            "kind": result.kind,
            "namespace": result.namespace,
            "name": result.name,
            "allowed": result.verdict.allowed,
            "errors": [_error(error) for error in result.verdict.errors],
            "warnings": [_error(error) for error in result.verdict.warnings],
            "patch": list(result.verdict.patch),
        }
        for result in results
    ]
    return json.dumps(document, indent=2)


def as_text(results: Sequence[LintResult], *, shows_changes: bool = False) -> str:
    """Return the results as text: one line per object, one per error or warning, and a summary.

    ``shows_changes``: below an object that admission changes, the difference to the one that would be stored.
    """
    lines = []
    for result in results:
        name = f"{result.namespace}/{result.name}" if result.namespace else result.name
        lines.append(f"{result.file}: {result.kind} {name}: {_word(result)}")
        lines += [f"  {error}  ({error.rule})" for error in result.verdict.errors]
        lines += [f"  warning: {error}  ({error.rule})" for error in result.verdict.warnings]
        lines += _changes(result) if shows_changes else []
    words = [_word(result) for result in results]
    counts = [f"{words.count(word)} {word}" for word in ("allowed", "denied", "skipped") if word in words]
    objects = "1 object" if len(words) == 1 else f"{len(words)} objects"
    lines.append(f"{objects}: {', '.join(counts)}" if words else "no objects found")
    return "\n".join(map(printable, lines))


def printable(line: str) -> str:
    """Return a line without characters that control a terminal or forge another line: names come from the files."""
    if line.isprintable():
        return line
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def _changes(result: LintResult) -> list[str]:
    """Return the lines that admission adds to and removes from an allowed object, with the lines around them."""
    if not (result.verdict.allowed and result.verdict.patch):
        return []
    stored = jsonpatch.apply_patch(result.submitted, list(result.verdict.patch))
    before, after = (yaml.safe_dump(content, sort_keys=False).splitlines() for content in (result.submitted, stored))
    return [f"  {line}" for line in unified_diff(before, after, "submitted", "stored", lineterm="")]


def _word(result: LintResult) -> str:
    if not result.is_reviewed:
        return "skipped"
    return "allowed" if result.verdict.allowed else "denied"


def _error(error: FieldError) -> dict[str, Any]:
    return {"rule": error.rule, "path": error.path, "value": error.value, "message": error.message}


def _read_all(files: Sequence[str]) -> tuple[list[Manifest], list[str]]:
    """Return the objects of all files, and an error message for each file that cannot be read."""
    manifests: list[Manifest] = []
    unreadable = []
    for file in files:
        try:
            manifests += read_manifests(file)
        except UnreadableError as error:
            unreadable.append(str(error))
    return manifests, unreadable


def _report_plugin_error(plugin: str, point: str, error: BaseException) -> None:
    print(f"plugin {plugin} failed in {point}:", file=sys.stderr)
    traceback.print_exception(error, file=sys.stderr)
