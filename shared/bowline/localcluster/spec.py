"""The options of a local cluster (values only).

The defaults are those of the demo and the tests; benchmarks omit what costs writes (kwok) or is not part of the
measurement (controllers).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

AuditLevel = Literal["Metadata", "Request", "RequestResponse"]

# Needed by the built-in workload kinds, volumes, claims, namespaces and aggregated roles. Deliberately omitted: node
# lifecycle, taint eviction and pod garbage collection, which act on nodes without heartbeats.
CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "ephemeral-volume-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "replicaset-controller",
    "replicationcontroller-controller",
    "resourceclaim-controller",
    "statefulset-controller",
)
# Added if pods need ServiceAccounts and token volumes as on a real cluster.
SERVICE_ACCOUNT_CONTROLLERS = ("root-ca-certificate-publisher-controller", "serviceaccount-controller")


@dataclass(frozen=True, slots=True)
class ClusterSpec:
    """One local cluster.

    - `kubernetes`: a minor such as "1.35"; None uses BOWLINE_KUBERNETES, else the default.
    - `data_dir`: the folder of all files; None creates a temporary folder that `stop` removes.
    - `controllers`: empty runs no kube-controller-manager.
    - `audit`: level of the audit log; None writes none.
    - `service_account_admission`: enables the ServiceAccount admission plugin and its controllers. Off by default: it
      rejects pods in a namespace until a controller has created the ServiceAccount `default`, a race that each test
      would have to wait out. Token requests work either way.
    """

    kubernetes: str | None = None
    data_dir: Path | None = None
    controllers: tuple[str, ...] = CONTROLLERS
    kwok: bool = True
    scheduler: bool = False
    audit: AuditLevel | None = None
    runtime_config: tuple[str, ...] = ()
    feature_gates: tuple[str, ...] = ()
    apiserver_args: tuple[str, ...] = ()
    service_account_admission: bool = False

    def all_controllers(self) -> tuple[str, ...]:
        """The controllers to run, including those that the admission plugin depends on."""
        if not self.controllers or not self.service_account_admission:
            return self.controllers
        return tuple(dict.fromkeys((*self.controllers, *SERVICE_ACCOUNT_CONTROLLERS)))
