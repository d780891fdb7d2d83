"""A real Kubernetes control plane on this machine, for the demo, the tests and the benchmarks.

The package has three parts. `assets` supplies the binaries; `cluster` runs etcd, kube-apiserver,
kube-controller-manager and kwok as child processes; `workload` and `pair` run Bowline's own processes from the
objects that the chart rendered, as their ServiceAccounts.

Nothing here simulates the API server: its responses are always the real ones. The package must not be imported by
webhook, reconciler or shared (import contracts enforce this).
"""
