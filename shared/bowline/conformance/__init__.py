"""Conformance of binders and schedulers that use the BindRequest API, run as black boxes on a real control plane."""
