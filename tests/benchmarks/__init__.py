"""Measurements, not tests: each command prints its figures and writes them as JSON. See docs/figures.md."""
