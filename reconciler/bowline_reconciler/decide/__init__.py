"""Decisions about a BindRequest: pure functions over a snapshot and the time. No I/O, no logging."""
