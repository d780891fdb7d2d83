"""The half of the framework that runs in the reconciler; the only half that reaches shared.kube."""
