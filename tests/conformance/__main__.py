"""`python -m tests.conformance`: KAI-Scheduler's binder in the cases of binders, with its defaults and fake GPUs.

Its program is built by `python -m bowline.localcluster assets --kai-peers`. Further arguments are those of
`python -m bowline.conformance`.
"""

import os
import shlex
import sys

from bowline.conformance.__main__ import main
from bowline.localcluster.assets.recipes import Tool
from bowline.localcluster.ports import free_ports
from tests.kai.team import peer_program


def kai_binder() -> str:
    """Return the command; the program finds the cluster by KUBECONFIG."""
    program = peer_program(os.environ, Tool.KAI_BINDER)
    metrics, probes = free_ports(2)
    options = (f"--metrics-bind-address=127.0.0.1:{metrics}", f"--health-probe-bind-address=127.0.0.1:{probes}")
    return shlex.join([str(program), *options, "--fake-gpu-nodes"])


if __name__ == "__main__":
    sys.exit(main(["--binder", kai_binder(), *sys.argv[1:]]))
