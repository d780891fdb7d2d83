"""The BindRequest reconciler process: ``python -m reconciler``."""
