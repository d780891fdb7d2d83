"""The command lines of the control plane's processes (pure: spec, folder and ports in, arguments out).

Each choice that differs from what a production cluster runs has its reason beside it.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from localcluster.spec import ClusterSpec

LOOPBACK = "127.0.0.1"
FAKE_NODE_ANNOTATION = "kwok.x-k8s.io/node"
FAKE_NODE_VALUE = "fake"


@dataclass(frozen=True, slots=True)
class Ports:
    """The loopback ports of one control plane."""

    apiserver: int
    kwok: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Where a cluster keeps what, below its data folder."""

    root: Path

    @property
    def pki(self) -> Path:
        """Certificates and keys."""
        return self.root / "pki"

    @property
    def logs(self) -> Path:
        """One file per process."""
        return self.root / "logs"

    @property
    def etcd(self) -> Path:
        """etcd's data."""
        return self.root / "etcd"

    @property
    def etcd_socket(self) -> Path:
        """Where etcd serves its client. It asks nobody for credentials, so the folder's mode is what guards it."""
        return self.root / "etcd.sock"

    @property
    def audit_log(self) -> Path:
        """The API server's audit log, one JSON event per line."""
        return self.root / "audit.log"

    @property
    def audit_policy(self) -> Path:
        """The policy of that log."""
        return self.root / "audit-policy.yaml"

    @property
    def kwok_config(self) -> Path:
        """kwok's configuration; kept here so that the user's own ~/.kwok is never read."""
        return self.root / "kwok.yaml"

    @property
    def state(self) -> Path:
        """What a later command must know to find and stop the processes."""
        return self.root / "state.json"

    @property
    def workloads(self) -> Path:
        """Files of processes started from rendered objects."""
        return self.root / "workloads"

    def kubeconfig(self, user: str) -> Path:
        """The kubeconfig of one of the cluster's own users."""
        return self.root / f"{user}.kubeconfig"


def etcd_args(layout: Layout) -> list[str]:
    """A single member whose data may be lost: nothing is forced to disk, elections are short.

    It listens on sockets in the cluster's folder, which only its owner may enter: on a port every user of the machine
    could read all Secrets and write any object, past the API server.
    """
    return [
        "--name=local",
        f"--data-dir={layout.etcd}",
        f"--listen-client-urls=unix://{layout.etcd_socket}",
        f"--listen-peer-urls=unix://{layout.etcd_socket.with_name('etcd-peer.sock')}",
        # Required, and to be addresses with a port; a member that is alone calls none of them.
        "--advertise-client-urls=http://localhost:2379",
        "--initial-advertise-peer-urls=http://localhost:2380",
        "--initial-cluster=local=http://localhost:2380",
        "--unsafe-no-fsync",
        # The first election waits for its timeout, a second by default, and there is nobody to lose it to.
        "--heartbeat-interval=20",
        "--election-timeout=200",
        # Room for benchmarks of 100,000 pods, each written several times; the default is 2 GiB.
        f"--quota-backend-bytes={8 << 30}",
        "--log-level=warn",
    ]


def apiserver_args(spec: ClusterSpec, layout: Layout, ports: Ports) -> list[str]:
    """RBAC as in production; admission lacks only what needs a component that does not run here."""
    # TaintNodesByCondition marks each new node as not ready, and only the node lifecycle controller, which
    # does not run here, would take the mark off again.
    disabled = ["TaintNodesByCondition"]
    if not spec.service_account_admission:
        disabled.append("ServiceAccount")
    args = [
        f"--etcd-servers=unix://{layout.etcd_socket}",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={ports.apiserver}",
        f"--tls-cert-file={layout.pki / 'apiserver.crt'}",
        f"--tls-private-key-file={layout.pki / 'apiserver.key'}",
        f"--client-ca-file={layout.pki / 'ca.crt'}",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={layout.pki / 'service-account.crt'}",
        f"--service-account-signing-key-file={layout.pki / 'service-account.key'}",
        "--service-cluster-ip-range=10.0.0.0/24",
        # A loopback address may not be an endpoint of the Service `kubernetes`; trying would log an error
        # every ten seconds.
        "--endpoint-reconciler-type=none",
        "--authorization-mode=Node,RBAC",
        f"--disable-admission-plugins={','.join(disabled)}",
        "--allow-privileged=true",
    ]
    if spec.runtime_config:
        args.append(f"--runtime-config={','.join(spec.runtime_config)}")
    if spec.feature_gates:
        args.append(f"--feature-gates={','.join(spec.feature_gates)}")
    if spec.audit is not None:
        args += [f"--audit-policy-file={layout.audit_policy}", f"--audit-log-path={layout.audit_log}"]
        # Blocking: a reader finds every request in the file that was answered before it looked.
        args.append("--audit-log-mode=blocking-strict")
    return [*args, *spec.apiserver_args]


def controller_manager_args(spec: ClusterSpec, layout: Layout) -> list[str]:
    """Each controller acts as its own ServiceAccount, with the rights Kubernetes gives it."""
    args = [
        f"--kubeconfig={layout.kubeconfig('kube-controller-manager')}",
        "--use-service-account-credentials=true",
        f"--controllers={','.join(spec.all_controllers())}",
        f"--root-ca-file={layout.pki / 'ca.crt'}",
        "--leader-elect=false",
        # Nobody asks it for metrics here, and without a port there is none to collide.
        "--secure-port=0",
        f"--kube-api-qps={spec.controller_qps}",
        f"--kube-api-burst={spec.controller_qps * 2}",
    ]
    if spec.feature_gates:
        args.append(f"--feature-gates={','.join(spec.feature_gates)}")
    return [*args, *spec.controller_args]


def scheduler_args(spec: ClusterSpec, layout: Layout) -> list[str]:
    """The default profile; only for comparisons, Bowline's pair needs no kube-scheduler."""
    args = [
        f"--kubeconfig={layout.kubeconfig('kube-scheduler')}",
        "--leader-elect=false",
        "--secure-port=0",
        f"--kube-api-qps={spec.controller_qps}",
        f"--kube-api-burst={spec.controller_qps * 2}",
    ]
    if spec.feature_gates:
        args.append(f"--feature-gates={','.join(spec.feature_gates)}")
    return args


def kwok_args(layout: Layout, ports: Ports) -> list[str]:
    """Plays the kubelets of annotated nodes only; no leases, which would be most of all writes."""
    return [
        f"--config={layout.kwok_config}",
        f"--kubeconfig={layout.kubeconfig('kwok')}",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={FAKE_NODE_ANNOTATION}={FAKE_NODE_VALUE}",
        "--node-lease-duration-seconds=0",
        f"--server-address={LOOPBACK}:{ports.kwok}",
    ]


def audit_policy_text(level: str) -> str:
    """One rule for every request; the stage before the handler would only repeat each event."""
    return f"apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{{level: {level}}}]\n"


def kwok_config_text(stages: str) -> str:
    """kwok's configuration file: the numbers it refuses to run without, then the stages it plays."""
    options = {
        "podPlayStageParallelism": 8,
        "nodePlayStageParallelism": 4,
        "nodeLeaseParallelism": 1,
        "cidr": "10.0.0.0/16",
        "enablePodsOnNodeSyncStreamWatch": True,
    }
    head = {"apiVersion": "config.kwok.x-k8s.io/v1alpha1", "kind": "KwokConfiguration", "options": options}
    return f"{json.dumps(head)}\n---\n{stages}"
