"""The plugin framework: the plugin interface, and how plugins are configured, ordered and called."""
