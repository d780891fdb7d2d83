"""The process inside a reservation pod: ``python -m shared.plugins.gpu_sharing.agent``.

A whole GPU is handed to the pod by the kubelet; the agent reads which one it is and writes its UUID into the pod's
own annotation, from where the reconciler takes it. It does nothing else, and may do nothing else: its ServiceAccount
reads and patches pods of the reservation namespace, and it touches its own.
"""
