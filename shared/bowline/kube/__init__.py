"""Access to the API server. No other package sends HTTP requests to it."""
