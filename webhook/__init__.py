"""The admission webhook process: ``python -m webhook``."""
