"""The part of the framework that runs in the reconciler; only this part may import bowline.kube."""
