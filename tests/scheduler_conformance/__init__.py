"""Schedulers as black boxes.

A package, so that fixtures of this scope, its control planes, end with the folder.
"""
