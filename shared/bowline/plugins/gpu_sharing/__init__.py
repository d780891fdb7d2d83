"""Shared GPUs: plugin `gpu_sharing`. ``admission`` has its methods of the webhook, ``plugin`` all of them."""
