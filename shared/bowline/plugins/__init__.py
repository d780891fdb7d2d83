"""Built-in plugins, one folder each. They never import one another."""
