"""How the reconciler calls plugins: this and the interface's part for it may import bowline.kube."""
