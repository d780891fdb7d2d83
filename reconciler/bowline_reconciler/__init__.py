"""The BindRequest reconciler process: ``python -m bowline_reconciler``."""
