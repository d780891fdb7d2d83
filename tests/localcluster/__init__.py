"""The local cluster."""
