"""Access to the API server. The only place in Bowline that speaks HTTP to it."""
