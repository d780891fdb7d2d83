"""``bowline plugin check``: conformance of a plugin, on a real API server that the command starts."""

import argparse
import sys
from contextlib import ExitStack

from bowline.localcluster.errors import LocalClusterError
from bowline.testing import conformance
from bowline.testing.servers import bare_api_server
from bowline_cli import plugin_target
from bowline_cli.terminal import printable

EXIT_FINDINGS, EXIT_USAGE = 1, 2


def run(options: argparse.Namespace) -> int:
    """Run the checks; return the exit status."""
    try:
        with ExitStack() as stack:
            target = plugin_target.target(options.plugin)
            subject = dict(plugin_target.samples(options.plugin))
            if options.pods:
                subject["pods"] = plugin_target.pods(options.pods)
            if options.args or "args" not in subject:
                subject["args"] = options.args
            subject.setdefault("limit_s", options.limit)
            cluster = None if options.no_cluster else stack.enter_context(bare_api_server())
            findings = list(conformance.run(target, cluster, **subject))
    except (plugin_target.TargetError, LocalClusterError) as error:
        sys.stderr.write(f"bowline plugin check: {printable(str(error))}\n")
        return EXIT_USAGE
    for finding in findings:
        sys.stdout.write(f"{printable(str(finding))}\n")
    sys.stdout.write(f"{options.plugin}: {len(findings) or 'no'} finding{'' if len(findings) == 1 else 's'}\n")
    return EXIT_FINDINGS if findings else 0
