"""Metrics, history and traces of the reconciler. Nothing here decides what happens to a request."""
