"""Metrics of the reconciler, and what it has in progress. Nothing here decides what happens to a request."""
