"""What a plugin author imports in tests: builders, clock, handle, recording plugin."""
