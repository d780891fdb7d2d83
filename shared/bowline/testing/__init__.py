"""Imports for plugin authors' tests: builders, clock, handle, recording plugin."""
