"""Building blocks of long-running processes: clock, backoff, queue, tasks, probes, metrics, logs. No Kubernetes."""
