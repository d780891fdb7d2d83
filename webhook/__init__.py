"""The admission webhook process: ``python -m bowline.webhook``."""
