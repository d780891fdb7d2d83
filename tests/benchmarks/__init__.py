"""Measurements, not tests: each command prints its figures, and with --record writes them to docs/figures.md."""
