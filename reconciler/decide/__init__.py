"""Decisions about a BindRequest: pure functions over what was read and the time. No I/O, no logging."""
