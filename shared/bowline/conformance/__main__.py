"""`python -m bowline.conformance`: does a scheduler keep the promises of the BindRequest API?

`--scheduler COMMAND --name NAME`: the command decides for pods of that schedulerName on a local cluster with fake GPU
nodes, Bowline binds. It is started with KUBECONFIG set; some cases kill and restart it. Exit status: 0 all cases
passed, 1 one failed, 2 invalid usage or no cluster.
"""

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence

from bowline.conformance.case import Case
from bowline.conformance.report import CaseResult, run_case
from bowline.conformance.scheduler import SchedulerCluster, SchedulerStage
from bowline.conformance.scheduler_cases import SCHEDULER_CASES
from bowline.localcluster.errors import LocalClusterError

# A scheduler may avoid a node for a minute after a failure.
_LIMIT_S = 120.0


def main(argv: Sequence[str]) -> int:
    """Run the selected cases; print one line for each."""
    arguments = parser()
    options = arguments.parse_args(argv)
    available = [case.name for case in SCHEDULER_CASES]
    unknown = [name for name in options.case if name not in available]
    if unknown:
        arguments.error(f"argument --case: no case {', '.join(unknown)} (choose from {', '.join(available)})")
    results = []
    try:
        for result in _results(
            options, [case for case in SCHEDULER_CASES if case.name in (options.case or available)]
        ):
            _say(result.line)
            results.append(result)
    except (LocalClusterError, TimeoutError) as error:
        sys.stderr.write(f"conformance: {error}\n")
        return 2
    return _conclude(results)


def _results(options: argparse.Namespace, cases: Sequence[Case[SchedulerStage]]) -> Iterator[CaseResult]:
    argv = shlex.split(options.scheduler)
    with SchedulerCluster.start([options.name], options.kubernetes) as cluster:
        for case in cases:
            yield run_case(case, cluster, argv, options.name, options.timeout)


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
    parser.add_argument("--scheduler", metavar="COMMAND", required=True, help="the program and its arguments")
    parser.add_argument(
        "--name",
        default="example-scheduler",
        metavar="NAME",
        help="schedulerName of the scheduler's pods (default: %(default)s)",
    )
    parser.add_argument("--case", action="append", default=[], metavar="NAME", help="only this case; may be repeated")
    parser.add_argument("--kubernetes", metavar="MINOR", help="such as 1.35 (default: $BOWLINE_KUBERNETES)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=_LIMIT_S,
        metavar="SECONDS",
        help="limit of each wait (default: %(default)s)",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
