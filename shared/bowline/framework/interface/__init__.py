"""What a plugin is to the framework: both interfaces, and what their methods receive and return."""
