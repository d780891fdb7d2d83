"""Wire names and shapes, as plain data. Imports nothing else of Bowline; does no I/O."""
