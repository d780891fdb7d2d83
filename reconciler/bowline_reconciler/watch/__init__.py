"""What is watched, and the caches that it fills.

Nothing is decided here, and nothing is written to the API server.
"""
