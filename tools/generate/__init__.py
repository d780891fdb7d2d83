"""Generators of the chart's files: the CRD, the pod policy and the table of workload kinds. Not part of the wheel."""
