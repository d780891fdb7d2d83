"""A real Kubernetes control plane on this machine, for the demo, the tests and the benchmarks.

The package has three parts. `assets` supplies the binaries; `cluster` runs etcd, kube-apiserver,
kube-controller-manager and kwok as child processes; `workload` and `pair` run Bowline's own
processes from the objects the chart rendered, as their ServiceAccounts.

Nothing here plays a control plane: where an answer of the API server matters, the real one gives it.
The package must not be imported by webhook, reconciler or shared (the import contracts hold this).
"""
