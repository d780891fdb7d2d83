"""The BindRequest reconciler process: ``python -m bowline.reconciler``."""
