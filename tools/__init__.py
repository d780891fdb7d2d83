"""Programs of the repository: they write generated files and build releases. Not in the wheel."""
