"""Conformance of schedulers that write BindRequests, run as black boxes on a real control plane."""
