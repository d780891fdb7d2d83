"""The serving certificate: its sources, how it is served, and how the API server is made to trust it."""
