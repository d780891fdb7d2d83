"""The plugin framework: the interfaces of plugins, and how plugins are configured, ordered and called."""
