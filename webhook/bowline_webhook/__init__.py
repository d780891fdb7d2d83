"""The admission webhook process: ``python -m bowline_webhook``."""
