"""`python -m bowline.conformance --binder COMMAND`: does a program bind as the BindRequest API promises?

The command is started with KUBECONFIG set, as the only binder of a local cluster with fake GPU nodes; some cases kill
and restart it. Exit status: 0 all cases passed, 1 one failed, 2 invalid usage or no cluster.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from bowline.conformance.binder import Binder, BinderCluster
from bowline.conformance.cases import CASES
from bowline.conformance.report import Result, run_case
from bowline.localcluster.errors import LocalClusterError


def main(argv: Sequence[str]) -> int:
    """Run the selected cases; print one line for each."""
    options = parser().parse_args(argv)
    cases = [case for case in CASES if not options.case or case.name in options.case]
    try:
        with BinderCluster.start(options.crd, options.kubernetes) as cluster:
            results = []
            for case in cases:
                result = run_case(case, cluster, Binder(cluster, shlex.split(options.binder)), options.timeout)
                _say(result.line)
                results.append(result)
    except LocalClusterError as error:
        sys.stderr.write(f"conformance: {error}\n")
        return 2
    return _conclude(results)


def _conclude(results: Sequence[Result]) -> int:
    failed = [result.case.name for result in results if result.why]
    _say(f"{len(results) - len(failed)} passed, {len(failed)} failed{': ' if failed else ''}{', '.join(failed)}")
    return 1 if failed else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m bowline.conformance", description=__doc__.split("\n")[0])
    parser.add_argument("--binder", required=True, metavar="COMMAND", help="the program and its arguments")
    parser.add_argument(
        "--case", action="append", choices=[case.name for case in CASES], help="only this case; may be repeated"
    )
    parser.add_argument("--crd", type=Path, metavar="FILE", help="the BindRequest CRD (default: Bowline's)")
    parser.add_argument("--kubernetes", metavar="MINOR", help="such as 1.35 (default: $BOWLINE_KUBERNETES)")
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="limit of each wait (default: %(default)s)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
