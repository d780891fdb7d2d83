"""Writes generated files of chart and docs, or compares them: ``python -m tools.generate [--check] [CHART]``."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tools.generate import (
    commands,
    configuration,
    crd,
    fields,
    plugins,
    policy,
    readme,
    reasons,
    reference,
    rules,
    values,
    workloads,
)

# By name below the chart's ``files/``.
GENERATED: Final[Mapping[str, Callable[[], str]]] = {
    "alerts.yaml": reasons.alerts,
    "bindrequests.yaml": crd.as_yaml,
    "plugins.yaml": plugins.as_yaml,
    "device-policy.yaml": policy.guarded_keys_as_yaml,
    "pod-policy.yaml": policy.as_yaml,
    "workloads.yaml": workloads.as_yaml,
}
# By name below the chart; its README is made from the first.
VALUES: Final[Mapping[str, Callable[[], str]]] = {
    "values.yaml": values.as_yaml,
    "values.schema.json": values.as_schema,
}
# By name below docs/.
PAGES: Final[Mapping[str, Callable[[], str]]] = {
    "bindrequest.md": fields.as_markdown,
    "commands.md": commands.as_markdown,
    "configuration.md": configuration.as_markdown,
    "reference.md": reference.as_markdown,
    "rules.md": rules.as_markdown,
}
CHART: Final = Path(__file__).resolve().parents[2] / "charts" / "bowline"
DOCS: Final = CHART.parents[1] / "docs"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or with ``--check`` compare them; return the exit code, 1 if a file is out of date."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate", description="The chart's generated files.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is out of date")
    parser.add_argument("chart", metavar="CHART", type=Path, nargs="?", default=CHART, help="(%(default)s)")
    options = parser.parse_args(arguments)
    stale = 0
    # A chart elsewhere has neither values nor pages: those of this repository stay as they are.
    targets = {CHART / name: text for name, text in VALUES.items()} if options.chart == CHART else {}
    targets |= {options.chart / "files" / name: text for name, text in GENERATED.items()}
    targets[options.chart / "README.md"] = readme.as_markdown
    pages = {DOCS / name: text for name, text in PAGES.items()} if options.chart == CHART else {}
    for path, text in {**targets, **pages}.items():
        if not options.check:
            path.write_text(text(), encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text():
            stale = 1
            sys.stderr.write(f"{path} is out of date; run `make generate`\n")
    return stale


if __name__ == "__main__":
    sys.exit(main())
