"""Names and shapes on the wire, as plain data. Imports nothing of Bowline; does no I/O."""
