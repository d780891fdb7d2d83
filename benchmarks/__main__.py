"""``python -m benchmarks bind [--quick] [--json FILE]``."""

import argparse
import asyncio
import sys
from pathlib import Path

import uvloop

from benchmarks.bind import FULL, QUICK, bench_bind
from benchmarks.report import as_json, as_text


def main() -> int:
    """Run one benchmark and print its table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Bowline's benchmarks.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    bind = commands.add_parser("bind", help="binding: throughput, latency and memory beside the API server's ceiling")
    bind.add_argument("--quick", action="store_true", help="small sizes, to see that it works; not for quoting")
    bind.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(bench_bind(QUICK if options.quick else FULL))
    print(as_text(report))
    if options.json:
        options.json.write_text(as_json(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
