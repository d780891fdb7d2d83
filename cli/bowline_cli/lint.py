"""``bowline lint``: the webhook's verdict on manifests, without a cluster.

It runs the webhook's admission chain over the same objects, so an error has the same rule, path and message in both.
Not checked is what requires a cluster (whether referenced objects exist, which namespaces are excluded, other
policies), and what the API server itself requires beyond its schema and amounts: names, references, selectors. The
schema needs the extra ``schema``; without it the output says that it was not checked.
"""

import argparse
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

from bowline.api.field_error import FieldError
from bowline.api.rule import Rule
from bowline.framework.admission import AdmissionChain
from bowline.framework.config import ConfigurationError, load_settings
from bowline.framework.scope import DEFAULT_SCHEDULER
from bowline.framework.strict_yaml import YamlBudget
from bowline.plugins.offline import offline_plugins
from bowline.plugins.reads import unread_annotations
from bowline_cli.embedded import embedded_manifests
from bowline_cli.findings import DUPLICATE_KEY, UNREADABLE, Finding, FindingSubject, duplicate_text
from bowline_cli.kustomize import Kustomizations
from bowline_cli.lint_settings import FILE, LintSettings, read_settings, require_rules
from bowline_cli.manifests import STANDARD_INPUT, Manifest, read_file
from bowline_cli.schema import UNCHECKED, open_schema
from bowline_cli.sources import sources_of
from bowline_cli.terminal import GREEN, RED, YELLOW, has_colours, printable, shown, with_progress
from bowline_cli.verdicts import LintResult, LintVerdict, review_manifest, with_ready_kinds

EXIT_ALLOWED, EXIT_DENIED, EXIT_USAGE = 0, 1, 2
_COLOURS = {LintVerdict.ALLOWED: GREEN, LintVerdict.DENIED: RED}
# Of charts, and of reasons for being out of scope, that one line has.
_NAMED_CHARTS, _NAMED_REASONS = 8, 4
_CHART = "the templates of a Helm chart are not rendered: review them by helm template CHART | bowline lint -"
EXAMPLES = f"""examples:
  bowline lint deploy/                                    the manifests of a folder
  helm template CHART | bowline lint --chart-path CHART - a rendered chart
  kustomize build | bowline lint -                        a rendered kustomization
  bowline lint . -o github --require-scheduler            in CI: every GPU pod names a scheduler of the cluster
  bowline lint . --fail-on warning --ignore RULE          with a warning that is accepted; {FILE} keeps such decisions
"""
# Of the JSON output; a change of its keys increases it.
FORMAT_VERSION = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Review pods, workloads and BindRequests in manifests as the cluster's webhook would. "
        "Exit status: 0 nothing denied, 1 something denied, 2 a file that cannot be read, no objects, or bad usage."
    )
    help_text = f"YAML or JSON, or a directory of such files; {STANDARD_INPUT} is standard input"
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, EXAMPLES
    parser.add_argument("files", nargs="*", metavar="FILE", help=help_text)
    parser.add_argument("-f", "--filename", action="append", default=[], metavar="FILE", help="as for kubectl")
    parser.add_argument(
        "-o", "--output", choices=("text", "json", "sarif", "github"), default="text", help="(%(default)s)"
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the cluster's Bowline configuration; alone it is only checked"
    )
    _add_decisions(parser)
    parser.add_argument(
        "--chart-path",
        default="",
        metavar="FOLDER",
        help="of the chart whose rendering is on standard input: findings are at its files",
    )
    parser.add_argument(
        "--fail-on",
        choices=("error", "warning", "unchecked"),
        default="error",
        help=(
            "exit with 1 also for warnings, or also for what was not reviewed although it may have GPUs (%(default)s)"
        ),
    )
    parser.add_argument(
        "--strict", action="store_true", help="in directories, a document that is no manifest is an error"
    )
    parser.add_argument(
        "--skip-others",
        action="store_true",
        help="a named file may be no manifest, as those of directories: for a hook that passes all changed files",
    )
    parser.add_argument("--all", action="store_true", help="list objects without pods and those out of scope, too")
    parser.add_argument(
        "--kubernetes-version",
        default="",
        metavar="VERSION",
        help="whose schema applies, such as 1.34 (the newest one that the extra `schema` has)",
    )
    parser.add_argument("--allow-empty", action="store_true", help="exit with 0 if there are no objects")
    parser.add_argument(
        "--show-changes",
        action="store_true",
        help="show what admission would change in allowed objects; generated names differ from the cluster's",
    )
    parser.set_defaults(run=run)


def _add_decisions(parser: argparse.ArgumentParser) -> None:
    """Describe what the file of a repository may have as well."""
    parser.add_argument(
        "--assume-scheduler", metavar="NAME", help="review pods without a schedulerName as if they had this one"
    )
    parser.add_argument(
        "--require-scheduler",
        action="store_true",
        help="a pod that requests a GPU and has none of the configuration's schedulers is an error",
    )
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="RULE",
        help=f"do not report findings of this rule; {FILE} in the present folder has more, with comments",
    )
    parser.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="files and folders of directories that are not read; a name or a path, with * and ?",
    )


def run(options: argparse.Namespace) -> int:
    """Run the command; returns the exit status."""
    try:
        _add_settings(options, read_settings(Path(FILE)))
        settings = with_ready_kinds(load_settings(options.config))
        plugins = offline_plugins(settings)
    except ConfigurationError as error:
        print(f"the configuration cannot be used:\n{error}", file=sys.stderr)
        return EXIT_USAGE
    paths = [*options.files, *options.filename]
    if not paths and options.config is not None:
        print(f"{options.config}: the configuration is valid")
        return EXIT_ALLOWED
    if not paths:
        print(f"name a file or a directory, or {STANDARD_INPUT} for standard input", file=sys.stderr)
        return EXIT_USAGE
    try:
        schema = open_schema(options.kubernetes_version)
    except ValueError as error:
        print(f"--kubernetes-version: {error}", file=sys.stderr)
        return EXIT_USAGE
    reading = _read_all(paths, options)
    reading.schema = schema.version if schema is not None else ""
    scheduler = options.assume_scheduler or DEFAULT_SCHEDULER
    unread = unread_annotations(plugins)
    chain = AdmissionChain(
        plugins, settings, on_error=_report_plugin_error, default_scheduler=scheduler, unread=unread
    )
    manifests = with_progress(reading.manifests, "objects", sys.stderr)
    results = []
    for manifest in manifests:
        reviewed = review_manifest(chain, manifest, schema, requires_scheduler=options.require_scheduler)
        result, ignored = reviewed.ignoring(options.ignore)
        results.append(result)
        reading.ignored += ignored
    _write(options, results, reading, settings.docs_url)
    return _status(options, results, reading)


def _add_settings(options: argparse.Namespace, settings: LintSettings) -> None:
    """Add what the repository has decided. Raises ConfigurationError for a rule that does not exist."""
    options.ignore, options.exclude = [*options.ignore, *settings.ignore], [*options.exclude, *settings.exclude]
    options.require_scheduler = options.require_scheduler or settings.require_scheduler
    options.assume_scheduler = options.assume_scheduler or settings.assume_scheduler
    require_rules(options.ignore)


def _write(options: argparse.Namespace, results: Sequence[LintResult], reading: "_Reading", docs_url: str) -> None:
    if options.output == "json":
        print(as_json(results, reading))
    elif options.output == "text":
        print(
            as_text(
                results,
                reading,
                shows_changes=options.show_changes,
                shows_all=options.all,
                colours=has_colours(sys.stdout),
            )
        )
    else:
        reports, notes = import_module("bowline_cli.reports"), _out_of_scope(results)
        unchecked = "" if reading.schema else UNCHECKED
        listed = subjects(results, reading)
        if options.output == "sarif":
            print(reports.as_sarif(listed, docs_url, unchecked=unchecked))
        else:
            places = {finding.file for subject in listed for finding in subject.findings}
            files = {file for file in places if os.path.isfile(file)}  # noqa: PTH113 - it raises no OSError
            print(reports.as_github(listed, len(results), files, [note for note in (*notes, unchecked) if note]))
    if options.output != "github":  # it has them as annotations
        for finding in reading.unreadable:
            print(printable(finding.message), file=sys.stderr)


def _status(options: argparse.Namespace, results: Sequence[LintResult], reading: "_Reading") -> int:
    is_misconfigured = any(result.has_wrong_path for result in results)
    if reading.unreadable or is_misconfigured or not (results or options.allow_empty):
        return EXIT_USAGE
    levels = ["error"]
    if any(result.review.warnings or result.manifest.duplicates for result in results):
        levels.append("warning")
    if reading.unrendered or reading.charts or not all(result.is_complete for result in results):
        levels.append("unchecked")
    is_denied = any(result.verdict is LintVerdict.DENIED for result in results)
    fails = {"error": (), "warning": ("warning",), "unchecked": ("warning", "unchecked")}[options.fail_on]
    return EXIT_DENIED if is_denied or any(level in levels for level in fails) else EXIT_ALLOWED


@dataclass(slots=True)
class _Reading:
    """What was read. ``unrendered``: files and the reason; ``charts``: folders whose templates are not read;
    ``schema``: the version of Kubernetes whose schema was applied, empty: none.
    """

    manifests: list[Manifest] = field(default_factory=list)
    unreadable: list[Finding] = field(default_factory=list)
    unrendered: list[tuple[str, str]] = field(default_factory=list)
    charts: list[str] = field(default_factory=list)
    others: int = 0
    schema: str = ""
    ignored: int = 0


def as_json(results: Iterable[LintResult], reading: _Reading) -> str:
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
            "schema": result.has_schema,
            "reason": result.reason,
            "errors": [_error(result.manifest, error) for error in result.review.errors],
            "warnings": [
                *(_error(result.manifest, warning) for warning in result.review.warnings),
                *(_duplicate(line, key) for line, key in result.manifest.duplicates),
            ],
            "patch": list(result.review.patch),
        }
        for result in results
    ]
    document = {
        "version": FORMAT_VERSION,
        "schema": reading.schema,
        "objects": objects,
        "unreadable": [finding.message for finding in reading.unreadable],
        "unrendered": [file for file, _ in reading.unrendered],
        "charts": reading.charts,
        "others": reading.others,
    }
    text: str = import_module("bowline_cli.reports").inert_json(json.dumps(document, indent=2))
    return text


def subjects(results: Iterable[LintResult], reading: _Reading) -> list[FindingSubject]:
    """Return the results for a report: one subject per listed object, and one per file that is not read."""
    listed_results = [
        FindingSubject(
            f"{result.manifest.place}: {result.manifest.kind} {result.name}",
            _words(result),
            result.verdict.is_review,
            result.findings(),
        )
        for result in results
        if result.is_listed
    ]
    return [
        *listed_results,
        *(FindingSubject(finding.file, "unreadable", True, [finding]) for finding in reading.unreadable),
        *(FindingSubject(file, "unrendered", False) for file, _ in reading.unrendered),
        *(FindingSubject(charts, _CHART, False) for charts in _charts(reading)),
    ]


def as_text(
    results: Sequence[LintResult],
    reading: _Reading,
    *,
    shows_changes: bool = False,
    shows_all: bool = False,
    colours: bool = False,
) -> str:
    """Return the results as text: one line per object, one per error or warning, and a summary.

    ``shows_changes``: below an object that admission changes, the difference to the one that would be stored.
    ``shows_all``: also objects without pods, and of kinds that are not known, without findings.
    """
    lines: list[tuple[str, str]] = []
    for result in results:
        if not (shows_all or result.is_listed):
            continue
        name = f"{result.namespace}/{result.name}" if result.namespace else result.name
        manifest = result.manifest
        text = f"{manifest.place}: {manifest.kind} {name}: {_words(result)}"
        lines.append((text, _COLOURS.get(result.verdict, "")))
        lines += [(f"  {error}  ({_origin(error.rule)})", "") for error in result.review.errors]
        lines += [(f"  warning: {error}  ({error.rule})", YELLOW) for error in result.review.warnings]
        lines += [
            (f"  warning: {finding.message}  ({DUPLICATE_KEY})", YELLOW)
            for finding in result.findings()
            if finding.rule is DUPLICATE_KEY
        ]
        lines += [(line, "") for line in _changes(result)] if shows_changes else []
    lines += [(f"{file}: unrendered ({reason.removeprefix(f'{file}: ')})", "") for file, reason in reading.unrendered]
    lines += [(f"{charts}: {_CHART}", "") for charts in _charts(reading)]
    lines.append((_summary(results, reading), ""))
    lines += [(note, "") for note in _out_of_scope(results)] if not shows_all else []
    if results and not reading.schema:
        lines.append((UNCHECKED, YELLOW))
    return shown(lines, colours=colours)


def _origin(rule: Rule) -> str:
    """Return the rule of an error, and whose it is unless it is Bowline's."""
    return f"API server: {rule}" if rule.id.startswith("kubernetes/") else rule.id


def _charts(reading: _Reading) -> list[str]:
    """Return the charts that are not rendered, as one text; sub-charts are rendered with theirs."""
    charts = [chart for chart in reading.charts if not any(chart.startswith(f"{o}/charts/") for o in reading.charts)]
    rest = len(charts) - _NAMED_CHARTS
    text = ", ".join(charts[:_NAMED_CHARTS])
    return [f"{text} and {rest} more" if rest > 0 else text] if charts else []


def _out_of_scope(results: Sequence[LintResult]) -> list[str]:
    """Return the line about the objects that are only counted; none without such objects."""
    hidden = [result.reason for result in results if result.is_hidden]
    if not hidden:
        return []
    counts = ", ".join(f"{reason}: {count}" for reason, count in Counter(hidden).most_common(_NAMED_REASONS))
    are_all = not any(result.verdict.is_review for result in results)
    text = f"{len(hidden)} of {len(results)} objects are out of scope ({counts})"
    flags = "--assume-scheduler NAME reviews pods that name no scheduler, --all lists them"
    return [f"{'nothing was reviewed: ' if are_all else ''}{text}; {flags}"]


def _summary(results: Sequence[LintResult], reading: _Reading) -> str:
    verdicts = [result.verdict for result in results]
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in LintVerdict if verdict in verdicts]
    objects = "1 object" if len(verdicts) == 1 else f"{len(verdicts)} objects"
    parts = [f"{objects}: {', '.join(counts)}" if verdicts else "no objects found"]
    if reading.others:
        noun = "document is no manifest" if reading.others == 1 else "documents are no manifests"
        parts.append(f"{reading.others} {noun}")
    if reading.unrendered or reading.charts:
        parts.append(f"{len(reading.unrendered) + len(reading.charts)} not rendered")
    if reading.ignored:
        parts.append(f"{reading.ignored} {'finding' if reading.ignored == 1 else 'findings'} ignored")
    kinds = dict.fromkeys(result.manifest.kind for result in results if not result.has_schema and result.is_listed)
    if kinds and reading.schema:
        parts.append(f"without a schema: {', '.join(kinds)}")
    return "; ".join(parts)


def _words(result: LintResult) -> str:
    return f"{result.verdict} ({result.reason})" if result.reason else str(result.verdict)


def _changes(result: LintResult) -> list[str]:
    """Return the lines that admission adds to and removes from an allowed object, with the lines around them."""
    if not (result.review.allowed and result.review.patch):
        return []
    patched_object = jsonpatch.apply_patch(result.submitted, list(result.review.patch))
    before, after = (
        yaml.safe_dump(content, sort_keys=False).splitlines() for content in (result.submitted, patched_object)
    )
    return [f"  {line}" for line in unified_diff(before, after, "submitted", "stored", lineterm="")]


def _error(manifest: Manifest, error: FieldError) -> dict[str, Any]:
    return {
        "rule": error.rule.id,
        "path": error.path,
        "line": manifest.line_of(error.path),
        "value": error.value,
        "message": error.message,
    }


def _duplicate(line: int, key: str) -> dict[str, Any]:
    message = duplicate_text(line, key)
    return {"rule": DUPLICATE_KEY.id, "path": "", "line": line, "value": key, "message": message}


def _read_all(paths: Sequence[str], options: argparse.Namespace) -> _Reading:
    """Return the objects of all files, and what could not be read.

    ``--strict``: as if each file were named; ``--skip-others``: as if none were.
    """
    sources, reading, budget = sources_of(paths, options.exclude), _Reading(), YamlBudget()
    reading.charts, kustomizations = sources.charts, Kustomizations(budget)
    reading.unrendered += [(link, "a link to a folder, which is not followed: name it") for link in sources.links]
    for error in sources.errors:
        reading.unreadable.append(Finding(UNREADABLE, str(error.filename), 1, f"{error.filename}: {error.strerror}"))
    for file, is_named in with_progress(sources.files, "files", sys.stderr):
        content = read_file(file, budget, is_named=options.strict or (is_named and not options.skip_others))
        is_part = file != STANDARD_INPUT and kustomizations.has_part(file)
        for single in content.manifests:
            manifest = replace(single, file=_chart_file(single, options.chart_path), is_part=is_part)
            reading.manifests += [manifest, *embedded_manifests(manifest)]
        reading.others += content.others
        reading.unreadable += [Finding(UNREADABLE, file, 1, message) for message in content.errors]
        reading.unrendered += [(file, content.unrendered)] if content.unrendered else []
    return reading


def _chart_file(manifest: Manifest, chart: str) -> str:
    """Return the file of an object: of a rendered one the chart's template, if it is there."""
    path = Path(chart, *Path(manifest.file).parts[1:])
    is_file = os.path.isfile(path)  # noqa: PTH113 - it raises no OSError
    return str(path) if manifest.is_rendered and chart and is_file else manifest.file


def _report_plugin_error(plugin: str, point: str, error: BaseException) -> None:
    print(f"plugin {plugin} failed in {point}:", file=sys.stderr)
    traceback.print_exception(error, file=sys.stderr)
