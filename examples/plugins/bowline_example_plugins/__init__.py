"""Example plugins for Bowline."""
