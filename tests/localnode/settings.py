"""Configuration files and arguments of the node's processes (pure: paths in, text out).

Each deviation from a production node has its reason beside it.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from bowline.localcluster.flags import LOOPBACK, Layout

NODE_NAME = "node1"
NODE_ADDRESS = "10.89.0.1"
POD_NETWORK = "10.244.0.0/24"
PAUSE_IMAGE = "localhost/pause:1"
# Where kubelets of every version expect device plugins and DRA drivers.
KUBELET_ROOT = Path("/var/lib/kubelet")
# kubelet and the API server's own checks set these for the whole machine. Files with the wanted values are mounted
# over them, so the machine's settings never change.
SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}


@dataclass(frozen=True, slots=True)
class NodeLayout:
    """The paths of the node's files, below the cluster's data folder."""

    root: Path

    @property
    def folder(self) -> Path:
        """The folder of the node."""
        return self.root / "node"

    @property
    def containerd_socket(self) -> Path:
        """The container runtime's socket."""
        return self.folder / "containerd.sock"

    @property
    def control_socket(self) -> Path:
        """Socket for commands to `boot`: stop, start or kill one of its processes."""
        return self.folder / "control.sock"

    @property
    def by_cdi(self) -> Path:
        """While it exists, the device plugin names devices to the container runtime by CDI."""
        return self.folder / "by-cdi"

    @property
    def cdi_specs(self) -> Path:
        """Folder of CDI specifications that tests write."""
        return self.folder / "cdi"

    @property
    def nvidia_runtime(self) -> Path:
        """The program of RuntimeClass `nvidia`."""
        return self.folder / "nvidia-runtime"

    @property
    def plan(self) -> Path:
        """The processes that `boot` starts, as JSON."""
        return self.folder / "plan.json"

    @property
    def ready(self) -> Path:
        """Exists once `boot` has started everything."""
        return self.folder / "ready"

    @property
    def failure_report(self) -> Path:
        """Why `boot` could not start everything."""
        return self.folder / "failed"


def apiserver_additions(layout: Layout) -> tuple[str, ...]:
    """Arguments after those of a cluster without nodes; the last occurrence of a flag counts."""
    pki = layout.pki
    return (
        # Pods reach it by the Service `kubernetes`, whose endpoint is the node's address.
        "--bind-address=0.0.0.0",
        f"--advertise-address={NODE_ADDRESS}",
        "--endpoint-reconciler-type=lease",
        "--enable-admission-plugins=NodeRestriction",
        # There is no DNS: `kubectl logs` and `exec` would try the node's name first.
        "--kubelet-preferred-address-types=InternalIP",
        f"--kubelet-client-certificate={pki / 'admin.crt'}",
        f"--kubelet-client-key={pki / 'admin.key'}",
        f"--kubelet-certificate-authority={pki / 'ca.crt'}",
    )


def cni_text(node: NodeLayout) -> str:
    """The pod network: a bridge, addresses from a local pool."""
    plugins = [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": POD_NETWORK}]],
                "routes": [{"dst": "0.0.0.0/0"}],
                "dataDir": str(node.folder / "ipam"),
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": plugins})


def containerd_text(node: NodeLayout, cni_plugins: Path) -> str:
    """containerd 2 with runc, and `nvidia` for pods with that RuntimeClass: runc behind a stand-in for NVIDIA's."""
    table = '[plugins."io.containerd.cri.v1.runtime".containerd.runtimes'
    kind = '        runtime_type = "io.containerd.runc.v2"\n'
    runtimes = (
        f"      {table}.runc]\n{kind}      {table}.nvidia]\n{kind}"
        f'        {table}.nvidia.options]\n          BinaryName = "{node.nvidia_runtime}"\n'
    )
    return f"""version = 3
root = "{node.folder / "containerd"}"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]
[grpc]
  address = "{node.containerd_socket}"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{PAUSE_IMAGE}"
[plugins."io.containerd.cri.v1.runtime"]
  # Raising a priority needs CAP_SYS_RESOURCE, which containers that run tests often lack.
  restrict_oom_score_adj = true
  disable_apparmor = true
  enable_cdi = true
  cdi_spec_dirs = ["/var/run/cdi", "{node.cdi_specs}"]
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{cni_plugins}"]
    conf_dir = "{node.folder / "cni"}"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes]
{runtimes}"""


def nvidia_runtime_text(node: NodeLayout) -> str:
    """A stand-in for NVIDIA's container runtime: what it does with NVIDIA_VISIBLE_DEVICES before it starts runc.

    A CDI name must be in a specification of the node; the devices that the container gets are in FAKE_GPU_DEVICES.
    """
    return f"""#!/usr/bin/env python3
import json, os, pathlib, sys

arguments = sys.argv[1:]
if "create" in arguments:
    config = pathlib.Path(arguments[arguments.index("--bundle") + 1], "config.json")
    spec = json.loads(config.read_text())
    environment = dict(entry.split("=", 1) for entry in spec["process"].get("env") or ())
    specs = [json.loads(path.read_text()) for path in pathlib.Path("{node.cdi_specs}").glob("*.json")]
    names = {{f"{{spec['kind']}}={{device['name']}}" for spec in specs for device in spec["devices"]}}
    devices = []
    for name in filter(None, environment.get("NVIDIA_VISIBLE_DEVICES", "").split(",")):
        if "=" in name and name not in names:
            log = pathlib.Path(arguments[arguments.index("--log") + 1])
            log.write_text(json.dumps({{"level": "error", "msg": "unresolvable CDI device " + name}}) + chr(10))
            sys.exit("unresolvable CDI device " + name)
        devices += [name.rpartition("=")[2]] * (name not in ("void", "none"))
    spec["process"]["env"] = [*(spec["process"].get("env") or ()), "FAKE_GPU_DEVICES=" + ",".join(devices)]
    config.write_text(json.dumps(spec))
os.execvp("runc", ["runc", *arguments])
"""


def kubelet_text(node: NodeLayout, layout: Layout) -> str:
    """The kubelet's configuration, as JSON, which is valid YAML."""
    pki = layout.pki
    thresholds = dict.fromkeys(("nodefs.available", "imagefs.available", "nodefs.inodesFree"), "1%")
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "failCgroupV1": False,
            "cgroupDriver": "cgroupfs",
            "containerRuntimeEndpoint": f"unix://{node.containerd_socket}",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": str(pki / "kubelet-serving.crt"),
            "tlsPrivateKeyFile": str(pki / "kubelet-serving.key"),
            "clusterDNS": ["10.0.0.10"],
            "clusterDomain": "cluster.local",
            "oomScoreAdj": 0,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "evictionHard": {"memory.available": "100Mi", **thresholds},
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
        }
    )


def kubelet_args(node: NodeLayout, layout: Layout) -> list[str]:
    """The kubelet's command line."""
    return [
        f"--config={node.folder / 'kubelet.json'}",
        f"--kubeconfig={layout.kubeconfig('kubelet')}",
        f"--hostname-override={NODE_NAME}",
        f"--node-ip={NODE_ADDRESS}",
        f"--root-dir={KUBELET_ROOT}",
        "--v=2",
    ]


def proxy_text(layout: Layout) -> str:
    """kube-proxy's configuration."""
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(layout.kubeconfig("kube-proxy"))},
            "mode": "iptables",
            "hostnameOverride": NODE_NAME,
            "clusterCIDR": POD_NETWORK,
            "oomScoreAdj": 0,
            "healthzBindAddress": f"{LOOPBACK}:10256",
            "metricsBindAddress": f"{LOOPBACK}:10249",
            # Settings of the whole machine; 0 keeps them unchanged.
            "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        }
    )
