"""``bowline lint``: the webhook's verdict on manifests, without a cluster.

It runs the webhook's admission chain over the same objects, so an error has the same rule, path and message in both.
Not checked is what requires a cluster: whether referenced objects exist, which namespaces are excluded, other
policies.
"""

import argparse
import json
import sys
import traceback
from collections.abc import Iterable, Sequence
from difflib import unified_diff
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

from bowline.api.field_error import FieldError
from bowline.framework.admission import DEFAULT_SCHEDULER, AdmissionChain
from bowline.framework.config import ConfigurationError, load_settings
from bowline.plugins.offline import offline_plugins
from bowline_cli.findings import UNREADABLE, Finding, FindingSubject
from bowline_cli.manifests import STANDARD_INPUT, Manifest, UnreadableError, files_in, read_manifests
from bowline_cli.terminal import GREEN, RED, YELLOW, has_colours, printable, shown, with_progress
from bowline_cli.verdicts import LintResult, LintVerdict, review_manifest, with_ready_kinds

EXIT_ALLOWED, EXIT_DENIED, EXIT_USAGE = 0, 1, 2
# Functions of `reports`, which is imported for them only.
_REPORTS = {"sarif": "as_sarif", "junit": "as_junit", "github": "as_github"}
_COLOURS = {LintVerdict.ALLOWED: GREEN, LintVerdict.DENIED: RED}
# Of the JSON output; a change of its keys increases it.
FORMAT_VERSION = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Review pods, workloads and BindRequests in manifests as the cluster's webhook would. "
        "Exit status: 0 nothing denied, 1 something denied, 2 a file that cannot be read, no objects, or bad usage."
    )
    what = f"YAML or JSON, or a directory of such files; {STANDARD_INPUT} is standard input"
    parser.add_argument("files", nargs="*", metavar="FILE", help=what)
    parser.add_argument("-f", "--filename", action="append", default=[], metavar="FILE", help="as for kubectl")
    parser.add_argument(
        "-o", "--output", choices=("text", "json", "sarif", "junit", "github"), default="text", help="(%(default)s)"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the cluster's Bowline configuration; alone it is only checked"
    )
    parser.add_argument(
        "--assume-scheduler", metavar="NAME", help="review pods without a schedulerName as if they had this one"
    )
    parser.add_argument(
        "--explain", metavar="RULE", nargs="?", const="", help="explain a rule instead; without RULE list all rules"
    )
    parser.add_argument("--allow-empty", action="store_true", help="exit with 0 if there are no objects")
    parser.add_argument(
        "--show-changes",
        action="store_true",
        help="show what admission would change in allowed objects; generated names differ from the cluster's",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    if options.explain is not None:
        return _explain(options.explain)
    try:
        settings = with_ready_kinds(load_settings(options.config))
        plugins = offline_plugins(settings)
    except ConfigurationError as error:
        print(f"the configuration cannot be used:\n{error}", file=sys.stderr)
        return EXIT_USAGE
    files = [*options.files, *options.filename]
    if not files and options.config is not None:
        print(f"{options.config}: the configuration is valid")
        return EXIT_ALLOWED
    if not files:
        print(f"name a file or a directory, or {STANDARD_INPUT} for standard input", file=sys.stderr)
        return EXIT_USAGE
    manifests, unreadable = _read_all(files)
    scheduler = options.assume_scheduler or DEFAULT_SCHEDULER
    chain = AdmissionChain(plugins, settings, on_error=_report_plugin_error, default_scheduler=scheduler)
    results = [review_manifest(chain, manifest) for manifest in with_progress(manifests, "objects", sys.stderr)]
    if options.output == "json":
        print(as_json(results, unreadable))
    elif options.output == "text":
        print(as_text(results, shows_changes=options.show_changes, colours=has_colours(sys.stdout)))
    else:
        report = getattr(import_module("bowline_cli.reports"), _REPORTS[options.output])
        print(report(subjects(results, unreadable)))
    for finding in unreadable:
        print(printable(finding.message), file=sys.stderr)
    is_misconfigured = any(result.has_wrong_path for result in results)
    if unreadable or is_misconfigured or not (results or options.allow_empty):
        return EXIT_USAGE
    return EXIT_DENIED if any(result.verdict is LintVerdict.DENIED for result in results) else EXIT_ALLOWED


def _explain(name: str) -> int:
    module = import_module("bowline_cli.rules")
    rules = module.all_rules()
    if not name:
        print("\n".join(rules))
    elif name in rules:
        print(module.explain_rule(rules[name]))
    else:
        similar = ", ".join(module.similar_rules(name, list(rules)))
        print(f"there is no rule {name}{f'; did you mean {similar}?' if similar else ''}", file=sys.stderr)
        return EXIT_USAGE
    return EXIT_ALLOWED


def as_json(results: Iterable[LintResult], unreadable: Sequence[Finding] = ()) -> str:
    """Return the results as JSON; its keys are a stable interface, see FORMAT_VERSION."""
    objects = [
        {
            "file": result.manifest.file,
            "line": result.manifest.line,
            "kind": result.manifest.kind,
            "namespace": result.namespace,
            "name": result.name,
            "verdict": result.verdict.value,
            "reviewed": result.verdict.is_review,
            "reason": result.reason,
            "errors": [_error(error) for error in result.review.errors],
            "warnings": [_error(error) for error in result.review.warnings],
            "patch": list(result.review.patch),
        }
        for result in results
    ]
    return json.dumps(
        {"version": FORMAT_VERSION, "objects": objects, "unreadable": [finding.message for finding in unreadable]},
        indent=2,
    )


def subjects(results: Iterable[LintResult], unreadable: Sequence[Finding] = ()) -> list[FindingSubject]:
    """Return the results for a report: one subject per object, and one per file that cannot be read."""
    reviewed = [
        FindingSubject(
            f"{result.manifest.file}:{result.manifest.line}: {result.manifest.kind} {result.name}",
            _words(result),
            result.verdict.is_review,
            [
                Finding(error.rule, result.manifest.file, result.manifest.line, str(error), error.is_warning)
                for error in (*result.review.errors, *result.review.warnings)
            ],
        )
        for result in results
    ]
    return reviewed + [FindingSubject(finding.file, "unreadable", True, [finding]) for finding in unreadable]


def as_text(results: Sequence[LintResult], *, shows_changes: bool = False, colours: bool = False) -> str:
    """Return the results as text: one line per object, one per error or warning, and a summary.

    ``shows_changes``: below an object that admission changes, the difference to the one that would be stored.
    """
    lines: list[tuple[str, str]] = []
    for result in results:
        name = f"{result.namespace}/{result.name}" if result.namespace else result.name
        manifest = result.manifest
        text = f"{manifest.file}:{manifest.line}: {manifest.kind} {name}: {_words(result)}"
        lines.append((text, _COLOURS.get(result.verdict, "")))
        lines += [(f"  {error}  ({error.rule})", "") for error in result.review.errors]
        lines += [(f"  warning: {error}  ({error.rule})", YELLOW) for error in result.review.warnings]
        lines += [(line, "") for line in _changes(result)] if shows_changes else []
    verdicts = [result.verdict for result in results]
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in LintVerdict if verdict in verdicts]
    objects = "1 object" if len(verdicts) == 1 else f"{len(verdicts)} objects"
    lines.append((f"{objects}: {', '.join(counts)}" if verdicts else "no objects found", ""))
    return shown(lines, colours=colours)


def _words(result: LintResult) -> str:
    return f"{result.verdict} ({result.reason})" if result.reason else str(result.verdict)


def _changes(result: LintResult) -> list[str]:
    """Return the lines that admission adds to and removes from an allowed object, with the lines around them."""
    if not (result.review.allowed and result.review.patch):
        return []
    stored = jsonpatch.apply_patch(result.submitted, list(result.review.patch))
    before, after = (yaml.safe_dump(content, sort_keys=False).splitlines() for content in (result.submitted, stored))
    return [f"  {line}" for line in unified_diff(before, after, "submitted", "stored", lineterm="")]


def _error(error: FieldError) -> dict[str, Any]:
    return {"rule": error.rule.id, "path": error.path, "value": error.value, "message": error.message}


def _read_all(files: Sequence[str]) -> tuple[list[Manifest], list[Finding]]:
    """Return the objects of all files, and an error message for each file that cannot be read."""
    manifests: list[Manifest] = []
    unreadable: list[Finding] = []
    for file in with_progress([file for path in files for file in files_in(path)], "files", sys.stderr):
        try:
            manifests += read_manifests(file)
        except UnreadableError as error:
            unreadable.append(Finding(UNREADABLE, file, 1, str(error)))
    return manifests, unreadable


def _report_plugin_error(plugin: str, point: str, error: BaseException) -> None:
    print(f"plugin {plugin} failed in {point}:", file=sys.stderr)
    traceback.print_exception(error, file=sys.stderr)
