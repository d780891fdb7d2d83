"""Binds that wait for the answer of another controller, in an API object."""
