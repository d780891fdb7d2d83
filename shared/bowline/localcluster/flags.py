"""Command lines of the control plane's processes (pure: spec, folder and ports in, arguments out).

Each deviation from a production cluster has its reason beside it.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from bowline.localcluster.spec import ClusterSpec

LOOPBACK = "127.0.0.1"
FAKE_NODE_ANNOTATION = "kwok.x-k8s.io/node"
FAKE_NODE_VALUE = "fake"
# Of each controller, and of the scheduler.
_RATE = ("--kube-api-qps=500", "--kube-api-burst=1000")


@dataclass(frozen=True, slots=True)
class Ports:
    """The loopback ports of one control plane."""

    apiserver: int
    kwok: int


class Layout:
    """The paths of a cluster's files, below its data folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pki = root / "pki"  # certificates and keys
        self.ca_file = self.pki / "ca.crt"  # the CA of the API server
        self.tokens = self.pki / "tokens.csv"  # static tokens that the API server accepts: the administrator's
        self.logs = root / "logs"  # one file per process
        self.cgroups = root / "node" / "cgroups"  # of a real node, one path per line; absent without one
        self.etcd = root / "etcd"
        # It requires no credentials, so only the folder's mode protects it.
        self.etcd_socket = root / "etcd.sock"
        self.audit_log = root / "audit.log"  # one JSON event per line
        self.audit_policy = root / "audit-policy.yaml"
        self.kwok_config = root / "kwok.yaml"  # here, so that the user's own ~/.kwok is never read
        self.state = root / "state.json"  # by which a later command finds and stops the processes
        self.workloads = root / "workloads"  # files of processes started from rendered objects

    def kubeconfig(self, user: str) -> Path:
        """The kubeconfig of one of the cluster's own users."""
        return self.root / f"{user}.kubeconfig"


def etcd_args(layout: Layout) -> list[str]:
    """A single member whose data may be lost: no fsync, short elections.

    It listens on sockets in the cluster's folder, which only its owner may enter: on a port every user of the machine
    could read all Secrets and write any object, bypassing the API server.
    """
    return [
        "--name=local",
        f"--data-dir={layout.etcd}",
        f"--listen-client-urls=unix://{layout.etcd_socket}",
        f"--listen-peer-urls=unix://{layout.etcd_socket.with_name('etcd-peer.sock')}",
        # Required, and must be addresses with a port; a single member does not use them.
        "--advertise-client-urls=http://localhost:2379",
        "--initial-advertise-peer-urls=http://localhost:2380",
        "--initial-cluster=local=http://localhost:2380",
        "--unsafe-no-fsync",
        # The first election waits for its timeout, a second by default, although there is no other member. A shorter
        # interval would cost CPU also when nothing is written.
        "--heartbeat-interval=100",
        "--election-timeout=500",
        # Enough for benchmarks of 100,000 pods, each written several times; the default is 2 GiB.
        f"--quota-backend-bytes={8 << 30}",
        "--log-level=warn",
    ]


def apiserver_args(spec: ClusterSpec, layout: Layout, ports: Ports) -> list[str]:
    """RBAC as in production; admission lacks only the plugins that need a component which does not run here."""
    # TaintNodesByCondition taints each new node as not ready, and only the node lifecycle controller, which does not
    # run here, would remove the taint.
    excluded_plugins = ["TaintNodesByCondition"]
    if not spec.service_account_admission:
        excluded_plugins.append("ServiceAccount")
    args = [
        f"--etcd-servers=unix://{layout.etcd_socket}",
        f"--bind-address={LOOPBACK}",
        # Otherwise it looks for an address of the machine, and does not start on one without a network.
        f"--advertise-address={LOOPBACK}",
        f"--secure-port={ports.apiserver}",
        f"--tls-cert-file={layout.pki / 'apiserver.crt'}",
        f"--tls-private-key-file={layout.pki / 'apiserver.key'}",
        f"--client-ca-file={layout.ca_file}",
        f"--token-auth-file={layout.tokens}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={layout.pki / 'service-account.crt'}",
        f"--service-account-signing-key-file={layout.pki / 'service-account.key'}",
        "--service-cluster-ip-range=10.0.0.0/24",
        # A loopback address must not be an endpoint of the Service `kubernetes`; trying would log an error every ten
        # seconds.
        "--endpoint-reconciler-type=none",
        "--authorization-mode=Node,RBAC",
        f"--disable-admission-plugins={','.join(excluded_plugins)}",
        "--allow-privileged=true",
    ]
    if spec.runtime_config:
        args.append(f"--runtime-config={','.join(spec.runtime_config)}")
    if spec.feature_gates:
        args.append(f"--feature-gates={','.join(spec.feature_gates)}")
    if spec.audit is not None:
        args += [f"--audit-policy-file={layout.audit_policy}", f"--audit-log-path={layout.audit_log}"]
        # Blocking: every request that has been answered is in the file.
        args.append("--audit-log-mode=blocking-strict")
        # Otherwise the log is rotated at 100 MB, and calls that were made before are missed.
        args.append("--audit-log-maxsize=10000")
    return [*args, *spec.apiserver_args]


def controller_manager_args(spec: ClusterSpec, layout: Layout) -> list[str]:
    """Each controller runs as its own ServiceAccount, with Kubernetes' own permissions."""
    args = [
        f"--kubeconfig={layout.kubeconfig('kube-controller-manager')}",
        "--use-service-account-credentials=true",
        f"--controllers={','.join(spec.all_controllers())}",
        f"--root-ca-file={layout.ca_file}",
        "--leader-elect=false",
        # No port: its metrics are not used here, and a port could collide.
        "--secure-port=0",
        *_RATE,
    ]
    if spec.feature_gates:
        args.append(f"--feature-gates={','.join(spec.feature_gates)}")
    return args


def scheduler_args(spec: ClusterSpec, layout: Layout) -> list[str]:
    """The default profile; only for comparisons, Bowline's pair needs no kube-scheduler."""
    args = [
        f"--kubeconfig={layout.kubeconfig('kube-scheduler')}",
        "--leader-elect=false",
        "--secure-port=0",
        *_RATE,
    ]
    if spec.feature_gates:
        args.append(f"--feature-gates={','.join(spec.feature_gates)}")
    return args


def kwok_args(layout: Layout, ports: Ports) -> list[str]:
    """Simulates the kubelets of annotated nodes only; without leases, which would be most of all writes."""
    return [
        f"--config={layout.kwok_config}",
        f"--kubeconfig={layout.kubeconfig('kwok')}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={FAKE_NODE_ANNOTATION}={FAKE_NODE_VALUE}",
        "--node-lease-duration-seconds=0",
        f"--server-address={LOOPBACK}:{ports.kwok}",
    ]


def audit_policy_text(level: str) -> str:
    """One rule for every request; the stage before the handler would only duplicate each event."""
    return f"apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{{level: {level}}}]\n"


def kwok_config_text(stages: str) -> str:
    """kwok's configuration file: the required numbers, then the stages."""
    options = {
        "podPlayStageParallelism": 8,
        "nodePlayStageParallelism": 4,
        "nodeLeaseParallelism": 1,
        "cidr": "10.0.0.0/16",
        "enablePodsOnNodeSyncStreamWatch": True,
    }
    head = {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration", "options": options}
    return f"{json.dumps(head)}\n---\n{stages}"
