"""Bowline's common package: what the webhook, the reconciler, the CLI and plugin authors share."""
