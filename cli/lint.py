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
from difflib import get_close_matches, unified_diff
from enum import StrEnum
from pathlib import Path
from typing import Any

import jsonpatch
import yaml

from bowline.cli.manifests import STANDARD_INPUT, Manifest, UnreadableError, files_in, read_manifests
from bowline.cli.reports import UNREADABLE, Finding, Subject, as_github, as_junit, as_sarif
from bowline.cli.rules import RULES, explain_rule, similar_rules
from bowline.cli.terminal import printable
from bowline.shared.api import names
from bowline.shared.api.field_error import FieldError
from bowline.shared.api.meta import Object
from bowline.shared.framework.admission import ALLOWED, AdmissionChain, Verdict
from bowline.shared.framework.config import ConfigurationError, Settings, WorkloadEntry, load_settings
from bowline.shared.framework.gates import GATES
from bowline.shared.framework.plugin import AdmissionInfo
from bowline.shared.framework.registry import Registry
from bowline.shared.framework.workloads import READY, resolve_workloads
from bowline.shared.plugins.catalog import BUILTINS
from bowline.webhook.review import display_name
from bowline.webhook.workloads import review_workload

EXIT_ALLOWED, EXIT_DENIED, EXIT_USAGE = 0, 1, 2
_REPORTS = {"sarif": as_sarif, "junit": as_junit, "github": as_github}
# Of the JSON output; a change of its keys increases it.
FORMAT_VERSION = 1
# Of the name of a kind: Podd and Deployement resemble one, PodMonitor does not.
_LIKENESS = 0.85


class LintVerdict(StrEnum):
    """The verdict on an object. Bowline reviews only the first two."""

    ALLOWED = "allowed"
    DENIED = "denied"
    OUT_OF_SCOPE = "out of scope"  # no pod of the object has a scheduler that the configuration lists
    NOT_CHECKED = "not checked"  # the kind is not one that Bowline knows


@dataclass(frozen=True, slots=True)
class LintResult:
    """The verdict on one object. ``exclusion``: why it is out of scope."""

    manifest: Manifest
    namespace: str
    name: str
    verdict: LintVerdict
    exclusion: str
    review: Verdict
    submitted: Object


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
        "--config", type=Path, metavar="FILE", help="the cluster's Bowline configuration; without it the defaults"
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
        plugins = Registry(BUILTINS, GATES).build(settings)
    except ConfigurationError as error:
        print(f"the configuration cannot be used:\n{error}", file=sys.stderr)
        return EXIT_USAGE
    files = [*options.files, *options.filename]
    if not files:
        print(f"name a file or a directory, or {STANDARD_INPUT} for standard input", file=sys.stderr)
        return EXIT_USAGE
    manifests, unreadable = _read_all(files)
    chain = AdmissionChain(plugins, settings, on_error=_report_plugin_error)
    results = [review_manifest(chain, manifest, options.assume_scheduler) for manifest in manifests]
    if options.output == "json":
        print(as_json(results, unreadable))
    elif options.output == "text":
        print(as_text(results, shows_changes=options.show_changes))
    else:
        print(_REPORTS[options.output](subjects(results, unreadable)))
    for finding in unreadable:
        print(printable(finding.message), file=sys.stderr)
    if unreadable or not (results or options.allow_empty):
        return EXIT_USAGE
    return EXIT_DENIED if any(result.verdict is LintVerdict.DENIED for result in results) else EXIT_ALLOWED


def _explain(name: str) -> int:
    text = explain_rule(name) if name else "\n".join(RULES)
    if text is None:
        similar = ", ".join(similar_rules(name))
        print(f"there is no rule {name}{f'; did you mean {similar}?' if similar else ''}", file=sys.stderr)
        return EXIT_USAGE
    print(text)
    return EXIT_ALLOWED


def with_ready_kinds(settings: Settings) -> Settings:
    """Return settings with every kind that Bowline knows by name, also those that the configuration does not list.

    A cluster that does not check such a kind stores the object and denies its pods; lint reports the error earlier.
    """
    kinds, _ = resolve_workloads(settings.workloads)
    entries = (WorkloadEntry(kind=ready.kind, group=ready.group) for ready in READY if ready.key not in kinds)
    return settings.model_copy(update={"workloads": (*settings.workloads, *entries)})


def review_manifest(chain: AdmissionChain, manifest: Manifest, scheduler: str | None = None) -> LintResult:
    """Check one object as on CREATE. Modifies ``manifest.object`` in place.

    ``scheduler``: of pods that name none.
    """
    raw = manifest.object
    submitted = copy.deepcopy(raw)
    metadata = raw.get("metadata")
    namespace = metadata.get("namespace") if isinstance(metadata, dict) else ""
    info = AdmissionInfo(kind=manifest.kind, namespace=namespace if isinstance(namespace, str) else "")
    specs = _pod_specs(chain, manifest)
    for spec in specs if scheduler else ():
        spec["schedulerName"] = spec.get("schedulerName") or scheduler
    review = _review(chain, manifest, info)
    exclusions = [chain.exclusion(spec, info.namespace) for spec in specs]
    verdict, exclusion = LintVerdict.ALLOWED, ""
    if review is None:
        verdict, exclusion = LintVerdict.NOT_CHECKED, _similar_kind(chain, manifest)
    elif not review.allowed:
        verdict = LintVerdict.DENIED
    elif exclusions and all(exclusions):
        verdict, exclusion = LintVerdict.OUT_OF_SCOPE, ", ".join(dict.fromkeys(exclusions))
    return LintResult(manifest, info.namespace, display_name(raw), verdict, exclusion, review or ALLOWED, submitted)


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
            "reviewed": result.verdict in (LintVerdict.ALLOWED, LintVerdict.DENIED),
            "exclusion": result.exclusion,
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


def subjects(results: Iterable[LintResult], unreadable: Sequence[Finding] = ()) -> list[Subject]:
    """Return the results for a report: one subject per object, and one per file that cannot be read."""
    reviewed = [
        Subject(
            f"{result.manifest.file}:{result.manifest.line}: {result.manifest.kind} {result.name}",
            f"{result.verdict} ({result.exclusion})" if result.exclusion else result.verdict,
            result.verdict in (LintVerdict.ALLOWED, LintVerdict.DENIED),
            [
                Finding(error.rule, result.manifest.file, result.manifest.line, str(error), error.is_warning)
                for error in (*result.review.errors, *result.review.warnings)
            ],
        )
        for result in results
    ]
    return reviewed + [Subject(finding.file, "unreadable", True, [finding]) for finding in unreadable]


def as_text(results: Sequence[LintResult], *, shows_changes: bool = False) -> str:
    """Return the results as text: one line per object, one per error or warning, and a summary.

    ``shows_changes``: below an object that admission changes, the difference to the one that would be stored.
    """
    lines = []
    for result in results:
        name = f"{result.namespace}/{result.name}" if result.namespace else result.name
        verdict = f"{result.verdict} ({result.exclusion})" if result.exclusion else result.verdict
        lines.append(f"{result.manifest.file}:{result.manifest.line}: {result.manifest.kind} {name}: {verdict}")
        lines += [f"  {error}  ({error.rule})" for error in result.review.errors]
        lines += [f"  warning: {error}  ({error.rule})" for error in result.review.warnings]
        lines += _changes(result) if shows_changes else []
    verdicts = [result.verdict for result in results]
    counts = [f"{verdicts.count(verdict)} {verdict}" for verdict in LintVerdict if verdict in verdicts]
    objects = "1 object" if len(verdicts) == 1 else f"{len(verdicts)} objects"
    lines.append(f"{objects}: {', '.join(counts)}" if verdicts else "no objects found")
    return "\n".join(map(printable, lines))


def _changes(result: LintResult) -> list[str]:
    """Return the lines that admission adds to and removes from an allowed object, with the lines around them."""
    if not (result.review.allowed and result.review.patch):
        return []
    stored = jsonpatch.apply_patch(result.submitted, list(result.review.patch))
    before, after = (yaml.safe_dump(content, sort_keys=False).splitlines() for content in (result.submitted, stored))
    return [f"  {line}" for line in unified_diff(before, after, "submitted", "stored", lineterm="")]


def _review(chain: AdmissionChain, manifest: Manifest, info: AdmissionInfo) -> Verdict | None:
    """Return the webhook's verdict on the object; None if its kind is not one that Bowline knows."""
    raw, key = manifest.object, (manifest.group, manifest.kind)
    if key == ("", "Pod"):
        metadata = raw.get("metadata")
        if not isinstance(metadata, dict) or not metadata.get("uid"):
            return chain.admit_pod(raw, info)
        for spec in _pod_specs(chain, manifest):
            spec.pop("nodeName", None)  # set by its scheduler, as in the output of kubectl get
        return chain.validate_pod(raw, None, info)
    if key == (names.GROUP, names.KIND):
        return chain.admit_bind_request(raw, info)
    if key in chain.workloads:
        return review_workload(chain, chain.workloads[key], raw, None, info)
    return None


def _similar_kind(chain: AdmissionChain, manifest: Manifest) -> str:
    """Return a hint if the kind is nearly one that Bowline knows; empty if not."""
    keys = (("", "Pod"), (names.GROUP, names.KIND), *chain.workloads)
    kinds = [kind for group, kind in keys if group == manifest.group]
    matches = get_close_matches(manifest.kind, kinds, 1, _LIKENESS)
    return f"did you mean kind {matches[0]}?" if matches else ""


def _pod_specs(chain: AdmissionChain, manifest: Manifest) -> list[dict[str, Any]]:
    """Return the pod specs in an object that Bowline reviews, as far as they are well-formed."""
    raw, key = manifest.object, (manifest.group, manifest.kind)
    templates = [raw] if key == ("", "Pod") else []
    if key in chain.workloads:
        templates = [template for _, template in chain.workloads[key].templates_in(raw) if isinstance(template, dict)]
    return [template["spec"] for template in templates if isinstance(template.get("spec"), dict)]


def _error(error: FieldError) -> dict[str, Any]:
    return {"rule": error.rule, "path": error.path, "value": error.value, "message": error.message}


def _read_all(files: Sequence[str]) -> tuple[list[Manifest], list[Finding]]:
    """Return the objects of all files, and an error message for each file that cannot be read."""
    manifests: list[Manifest] = []
    unreadable: list[Finding] = []
    for file in (file for path in files for file in files_in(path)):
        try:
            manifests += read_manifests(file)
        except UnreadableError as error:
            unreadable.append(Finding(UNREADABLE, file, 1, str(error)))
    return manifests, unreadable


def _report_plugin_error(plugin: str, point: str, error: BaseException) -> None:
    print(f"plugin {plugin} failed in {point}:", file=sys.stderr)
    traceback.print_exception(error, file=sys.stderr)
