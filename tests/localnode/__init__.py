"""A real Kubernetes node beside the control plane: containerd, kubelet and kube-proxy, with fake GPUs.

Everything runs below one process in namespaces and cgroups of its own. Killing that process ends all of it; the
watchdog of the program that started it removes the empty cgroups. Callers use `cluster` only.
"""
