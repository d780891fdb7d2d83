"""``bowline lint``: the webhook's verdict on manifests, without a cluster.

It runs the webhook's admission chain over the same objects, so an error has the same rule, path and message in both.
Not checked is what requires a cluster (whether referenced objects exist, which namespaces are excluded, other
policies), and what the API server itself requires beyond its schema and amounts: names, references, selectors. The
schema needs the extra ``schema``; without it the output says that it was not checked. What a repository has decided
is in the file `.bowline-lint.yaml` of the present folder, whose comments give the reasons: a flag adds to its lists,
and precedes its other values.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Final

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from bowline.api import names
from bowline.api.field_error import FieldError
from bowline.api.schema import schema_errors
from bowline.framework.admission import AdmissionChain
from bowline.framework.config import SCHEMA, ConfigurationError, load_settings
from bowline.framework.strict_yaml import StrictLoader, YamlBudget
from bowline.plugins.offline import offline_plugins
from bowline.plugins.reads import unread_annotations
from bowline_cli.embedded import embedded_manifests
from bowline_cli.kustomize import Kustomizations
from bowline_cli.lint_output import LintReading, as_github, as_json, as_text
from bowline_cli.manifests import STANDARD_INPUT, UNREADABLE, Finding, Manifest, read_file
from bowline_cli.schema import open_schema
from bowline_cli.terminal import printable
from bowline_cli.verdicts import LintResult, LintVerdict, review_manifest, with_ready_kinds

FILE: Final = ".bowline-lint.yaml"
_SUFFIXES: Final = (".yaml", ".yml", ".json")
EXIT_ALLOWED, EXIT_DENIED, EXIT_USAGE = 0, 1, 2
EXAMPLES = f"""examples:
  bowline lint deploy/                                    the manifests of a folder
  helm template CHART | bowline lint --chart-path CHART - a rendered chart
  kustomize build | bowline lint -                        a rendered kustomization
  bowline lint . -o github --require-scheduler            in CI: every GPU pod names a scheduler of the cluster
  bowline lint . --fail-on warning --ignore RULE          with a warning that is accepted; {FILE} keeps such decisions
"""


class LintSettings(BaseModel):
    """``ignore``: ids of rules; ``exclude``: patterns of files; the others as the flags of the same names."""

    model_config = ConfigDict(alias_generator=to_camel, frozen=True, extra="forbid", strict=True, defer_build=True)

    ignore: list[str] = []
    exclude: list[str] = []
    assume_scheduler: str = ""
    require_scheduler: bool = False


def read_settings(file: Path) -> LintSettings:
    """Return the settings in the file; the defaults if it does not exist. Raises ConfigurationError."""
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), StrictLoader)  # noqa: S506 - it is a SafeLoader
        return LintSettings.model_validate({} if content is None else content)
    except FileNotFoundError:
        return LintSettings.model_construct()
    except ValidationError as error:
        errors = schema_errors(SCHEMA, "", error.errors())
        raise ConfigurationError([replace(each, path=f"{file}: {each.path}") for each in errors]) from error
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigurationError([FieldError(SCHEMA, str(file), "", " ".join(str(error).split()))]) from error


def require_rules(ids: Iterable[str]) -> None:
    """Raise ConfigurationError for ids of rules that do not exist."""
    if not ids:
        return
    module = import_module("bowline_cli.rule")  # of the whole product; lint needs its own rules only
    rules = module.all_rules()
    hints = {name: ", ".join(module.similar_rules(name, list(rules))) for name in ids if name not in rules}
    texts = {name: f"did you mean {hint}?" if hint else "bowline rule lists all" for name, hint in hints.items()}
    if texts:
        errors = [
            FieldError(SCHEMA, "ignore", name, f"there is no such rule; {text}") for name, text in texts.items()
        ]
        raise ConfigurationError(errors)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the command line."""
    parser.description = (
        "Review pods, workloads and BindRequests in manifests as the cluster's webhook would. "
        "Exit status: 0 nothing denied, 1 something denied, 2 a file that cannot be read, no objects, or bad usage."
    )
    help_text = f"YAML or JSON, or a directory of such files; {STANDARD_INPUT} is standard input"
    parser.formatter_class, parser.epilog = argparse.RawDescriptionHelpFormatter, EXAMPLES
    parser.add_argument("files", nargs="*", metavar="FILE", help=help_text)
    parser.add_argument("-o", "--output", choices=("text", "json", "github"), default="text", help="(%(default)s)")
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
        "--skip-others",
        action="store_true",
        help="a named file may be no manifest, as those of directories: for a hook that passes all changed files",
    )
    parser.add_argument(
        "--all", action="store_true", help="list objects without pods, patches and those out of scope, too"
    )
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
    paths = options.files
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
    chain = AdmissionChain(
        plugins,
        settings,
        on_error=_report_plugin_error,
        default_scheduler=options.assume_scheduler or names.DEFAULT_SCHEDULER,
        unread=unread_annotations(plugins),
    )
    needs_scheduler = options.require_scheduler
    results = [
        review_manifest(chain, manifest, schema, requires_scheduler=needs_scheduler).ignoring(options.ignore)
        for manifest in reading.manifests
    ]
    _write(options, results, reading)
    return _status(options, results, reading)


def _add_settings(options: argparse.Namespace, settings: LintSettings) -> None:
    """Add what the repository has decided. Raises ConfigurationError for a rule that does not exist."""
    options.ignore, options.exclude = [*options.ignore, *settings.ignore], [*options.exclude, *settings.exclude]
    options.require_scheduler = options.require_scheduler or settings.require_scheduler
    options.assume_scheduler = options.assume_scheduler or settings.assume_scheduler
    require_rules(options.ignore)


def _write(options: argparse.Namespace, results: Sequence[LintResult], reading: LintReading) -> None:
    if options.output == "json":
        print(as_json(results, reading))
    elif options.output == "text":
        print(
            as_text(
                results,
                reading,
                shows_changes=options.show_changes,
                shows_all=options.all,
            )
        )
    else:
        print(as_github(results, reading, os.path.isfile))
    if options.output != "github":  # it has them as annotations
        for finding in reading.unreadable:
            print(printable(finding.message), file=sys.stderr)


def _status(options: argparse.Namespace, results: Sequence[LintResult], reading: LintReading) -> int:
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


def _read_all(paths: Sequence[str], options: argparse.Namespace) -> LintReading:
    """Return the objects of all files, and what could not be read. ``--skip-others``: as if no file were named."""
    reading, budget = LintReading(), YamlBudget()
    kustomizations = Kustomizations(budget)
    for file, is_named in _source_files(paths, options.exclude, reading):
        content = read_file(file, budget, is_named=is_named and not options.skip_others)
        part = kustomizations.part(file) if content.manifests and file != STANDARD_INPUT else None
        for entry in content.manifests:
            manifest = replace(entry, file=_chart_file(entry, options.chart_path), part=part)
            reading.manifests += [manifest, *embedded_manifests(manifest)]
        reading.others += content.others
        reading.unreadable += [Finding(UNREADABLE, file, 1, message) for message in content.errors]
        reading.unrendered += [(file, content.unrendered)] if content.unrendered else []
    return reading


def _chart_file(manifest: Manifest, chart: str) -> str:
    """Return the file of an object: of a rendered one the chart's template, if it is there."""
    if not (manifest.is_rendered and chart):
        return manifest.file
    path = Path(chart, *Path(manifest.file).parts[1:])
    is_file = os.path.isfile(path)  # noqa: PTH113 - it raises no OSError
    return str(path) if is_file else manifest.file


def _report_plugin_error(plugin: str, point: str, error: BaseException) -> None:
    print(f"plugin {plugin} failed in {point}:", file=sys.stderr)
    traceback.print_exception(error, file=sys.stderr)


def _source_files(paths: Sequence[str], excludes: Sequence[str], reading: LintReading) -> Iterator[tuple[str, bool]]:
    """Yield the files to read, each with whether the user has named it; those of a directory in order of their names.

    Not searched are folders whose name begins with a dot, node_modules, links to folders, and the templates of Helm
    charts. ``excludes``: patterns of paths or names of files and folders.
    """
    for path in paths:
        if path != STANDARD_INPUT and os.path.isdir(path):  # noqa: PTH112 - it raises no OSError
            yield from ((file, False) for file in sorted(_files_below(path, excludes, reading)))
        else:
            yield path, True


def _files_below(root: str, excludes: Sequence[str], reading: LintReading) -> Iterator[str]:
    def on_error(error: OSError) -> None:
        reading.unreadable.append(Finding(UNREADABLE, str(error.filename), 1, f"{error.filename}: {error.strerror}"))

    for folder, folders, files in os.walk(root, onerror=on_error):
        is_chart = "Chart.yaml" in files
        if is_chart and "templates" in folders:
            reading.charts.append(str(Path(folder)))
        folders[:] = sorted(
            name
            for name in folders
            if not name.startswith(".")
            and name != "node_modules"
            and not (is_chart and name == "templates")
            and not _is_excluded(root, Path(folder, name), excludes)
        )
        links = [str(path) for path in (Path(folder, name) for name in folders) if path.is_symlink()]
        reading.unrendered += [(link, "a link to a folder, which is not followed: name it") for link in links]
        for name in files:
            path = Path(folder, name)
            if name.endswith(_SUFFIXES) and not _is_excluded(root, path, excludes) and not _is_special(path):
                yield str(path)


def _is_special(path: Path) -> bool:
    """Return whether a path is a pipe or a device, whose reading may not end; a link to nothing is not."""
    return os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113 - they raise no OSError


def _is_excluded(root: str, path: Path, patterns: Sequence[str]) -> bool:
    names = (str(path), str(path.relative_to(root)), path.name)
    return any(fnmatch(name, pattern.rstrip("/")) for name in names for pattern in patterns)
