"""The plugin framework: what a plugin is, how plugins are configured, ordered and called."""
