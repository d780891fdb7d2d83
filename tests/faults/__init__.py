"""Crashes and outages.

A package, so that fixtures of this scope, its control planes, end with the folder.
"""
