"""`python -m bowline.conformance`: does a binder or a scheduler keep the promises of the BindRequest API?

`--binder COMMAND`: the command is the only binder of a local cluster with fake GPU nodes. `--scheduler COMMAND --name
NAME`: the command decides for pods of that schedulerName, Bowline binds. It is started with KUBECONFIG set; some
cases kill and restart it. Exit status: 0 all cases passed, 1 one failed, 2 invalid usage or no cluster.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bowline.conformance.binder import Binder, BinderCluster, Situation
from bowline.conformance.case import Case, S
from bowline.conformance.cases import CASES
from bowline.conformance.report import CaseResult, run_case, run_scheduler_case
from bowline.conformance.scheduler import SchedulerCluster, SchedulerStage
from bowline.conformance.scheduler_cases import SCHEDULER_CASES
from bowline.localcluster.errors import LocalClusterError

# A scheduler may avoid a node for a minute after a failure.
_BINDER_LIMIT_S, _SCHEDULER_LIMIT_S = 60.0, 120.0


def main(argv: Sequence[str]) -> int:
    """Run the selected cases; print one line for each."""
    arguments = parser()
    options = arguments.parse_args(argv)
    if options.scheduler:
        run = scheduler_results(options, _selected(SCHEDULER_CASES, options.case, arguments))
    else:
        run = binder_results(options, _selected(CASES, options.case, arguments))
    results = []
    try:
        for result in run:
            _say(result.line)
            results.append(result)
    except (LocalClusterError, TimeoutError) as error:
        sys.stderr.write(f"conformance: {error}\n")
        return 2
    return _conclude(results)


def _selected(cases: Sequence[Case[S]], names: Sequence[str], arguments: argparse.ArgumentParser) -> list[Case[S]]:
    """Return the cases of these names, without names all; a name without a case is invalid usage."""
    available = [case.name for case in cases]
    unknown = [name for name in names if name not in available]
    if unknown:
        arguments.error(f"argument --case: no case {', '.join(unknown)} (choose from {', '.join(available)})")
    return [case for case in cases if not names or case.name in names]


def binder_results(options: argparse.Namespace, cases: Sequence[Case[Situation]]) -> Iterator[CaseResult]:
    """Run cases of binders."""
    with BinderCluster.start(options.crd, options.kubernetes) as cluster:
        for case in cases:
            binder = Binder(cluster, shlex.split(options.binder))
            yield run_case(case, cluster, binder, options.timeout or _BINDER_LIMIT_S)


def scheduler_results(options: argparse.Namespace, cases: Sequence[Case[SchedulerStage]]) -> Iterator[CaseResult]:
    """Run cases of schedulers."""
    argv = shlex.split(options.scheduler)
    with SchedulerCluster.start([options.name], options.kubernetes) as cluster:
        for case in cases:
            yield run_scheduler_case(case, cluster, argv, options.name, options.timeout or _SCHEDULER_LIMIT_S)


def _conclude(results: Sequence[CaseResult]) -> int:
    failed = [result.case.name for result in results if result.why]
    _say(f"{len(results) - len(failed)} passed, {len(failed)} failed{': ' if failed else ''}{', '.join(failed)}")
    return 1 if failed else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bowline.conformance", description=__doc__.split("\n")[0])
    subject = parser.add_mutually_exclusive_group(required=True)
    subject.add_argument("--binder", metavar="COMMAND", help="a binder: the program and its arguments")
    subject.add_argument("--scheduler", metavar="COMMAND", help="a scheduler: the program and its arguments")
    parser.add_argument(
        "--name",
        default="bowline",
        metavar="NAME",
        help="schedulerName of the scheduler's pods (default: %(default)s)",
    )
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help="only this case; may be repeated")
    parser.add_argument("--crd", type=Path, metavar="FILE", help="a binder's BindRequest CRD (default: Bowline's)")
    parser.add_argument("--kubernetes", metavar="MINOR", help="such as 1.35 (default: $BOWLINE_KUBERNETES)")
    limits = f"default: {_BINDER_LIMIT_S:g}, of a scheduler {_SCHEDULER_LIMIT_S:g}"
    parser.add_argument("--timeout", type=float, metavar="SECONDS", help=f"limit of each wait ({limits})")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
