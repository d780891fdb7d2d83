"""What a plugin author imports in tests: control plane, builders, recording plugin."""
