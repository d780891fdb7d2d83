"""The example scheduler as a local process with its own ServiceAccount, and the volumes of the example manifests."""

import os
import sys

from bowline.localcluster.checkout import CHECKOUT, EXAMPLES
from bowline.localcluster.cluster import Cluster
from bowline.localcluster.process import Launch, Process

SCHEDULER = "example-scheduler"


def start_scheduler(cluster: Cluster) -> Process:
    """Create what the examples need, and start the scheduler; it ends with the cluster.

    A second call starts it again, as after a crash: its state is in the API objects.
    """
    cluster.kubectl(
        "apply", f"--filename={EXAMPLES / 'scheduler/rbac.yaml'}", f"--filename={EXAMPLES / 'manifests/volumes.yaml'}"
    )
    kubeconfig = cluster.service_account_kubeconfig("default", SCHEDULER)
    argv = (sys.executable, str(EXAMPLES / "scheduler" / "scheduler.py"))
    environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "PYTHONUNBUFFERED": "1"}
    return cluster.run_process(Launch(SCHEDULER, argv, cluster.layout.logs / f"{SCHEDULER}.log", CHECKOUT, environ))
