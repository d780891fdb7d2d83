"""The ``bowline`` command."""
