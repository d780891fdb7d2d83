"""Conformance of programs that implement the BindRequest API, run as black boxes on a real control plane."""
