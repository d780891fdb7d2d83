"""The serving certificate: where it comes from, how it is served, how the API server comes to trust it."""
