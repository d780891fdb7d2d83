"""A term of leadership: its beginning, what is kept from it to its end, and the loops that run in it.

What becomes of one request is decided in ``decide`` and executed in ``drive``.
"""
