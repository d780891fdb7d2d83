"""What any long-running process needs: clock, backoff, queue, tasks, probes, metrics, logs. Knows no Kubernetes."""
