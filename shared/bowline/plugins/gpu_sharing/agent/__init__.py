"""The process inside a reservation pod: ``python -m bowline.plugins.gpu_sharing.agent``.

The kubelet assigns a whole GPU to the pod; the agent reads its UUID and writes it to the pod's own annotation, where
the reconciler reads it, and again if another client changes it. It does nothing else: its ServiceAccount may get and
patch pods of the reservation namespace, and the agent only touches its own.
"""
